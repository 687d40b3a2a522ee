"""How are Medusa heads trained? Each learns the token so many places ahead from the target's last hidden state.

Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", arXiv:2401.10774,
section 2.2.1 (Medusa-1: the target is frozen).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from deploy.train.batches import Batch
from deploy.train.network import linear, trainable
from deploy.train.settings import MedusaSettings
from deploy.train.target import TargetWeights
from deploy.train.trainee import Losses, mean
from deploy.train.vocabulary import DraftVocabulary
from fleet.errors import ConfigError
from replicas.heads.checkpoint import Checkpoint


class Medusa:
    """Published as Medusa-1 files, or with a draft vocabulary, which those cannot have, as vLLM converts them."""

    name = "medusa"

    def __init__(self, settings: MedusaSettings) -> None:
        """Raises ConfigError where one shared head is asked for in Medusa-1's layout."""
        if settings.shared_head and settings.draft_vocab is None:
            raise ConfigError("--shared-head needs --draft-vocab: Medusa-1's own layout has a head for each position")
        self._settings = settings

    def taps(self, layers: int) -> tuple[int, ...]:
        return (layers,)

    def vocabulary_size(self, vocab_size: int) -> int:
        return min(self._settings.draft_vocab or vocab_size, vocab_size)

    def initial(self, weights: TargetWeights, vocabulary: DraftVocabulary) -> Checkpoint:
        """Every head starts as the target's own: its residual block adds nothing (section 2.1.1)."""
        hidden = weights.head.shape[1]
        tensors: dict[str, Tensor] = {}
        for head in range(self._settings.heads):
            block, output = _names(self._settings, head)
            tensors |= _silent_block(block, hidden, weights.device)
            tensors[f"{output}.weight"] = weights.head[vocabulary.target_ids]
        if self._settings.draft_vocab is None:
            return Checkpoint(self.name, self._medusa_1_config(), tensors)
        tensors["token_map"] = vocabulary.target_ids.cpu()
        return Checkpoint(self.name, self._converted_config(hidden, vocabulary), tensors)

    def trainee(self, checkpoint: Checkpoint, weights: TargetWeights, vocabulary: DraftVocabulary) -> MedusaTrainee:
        return MedusaTrainee(checkpoint, vocabulary, self._settings)

    def _medusa_1_config(self) -> dict[str, Any]:
        return {
            "medusa_num_heads": self._settings.heads,
            "medusa_num_layers": 1,
            "base_model_name_or_path": self._settings.target,
        }

    def _converted_config(self, hidden: int, vocabulary: DraftVocabulary) -> dict[str, Any]:
        return {
            "architectures": ["MedusaModel"],
            "base_model_name_or_path": self._settings.target,
            "model_type": "medusa",
            "hidden_size": hidden,
            "vocab_size": vocabulary.vocab_size,
            "truncated_vocab_size": len(vocabulary),
            "num_heads": self._settings.heads,
            "num_hidden_layers": 1,
            "medusa_fc_bias": True,
            "original_lm_head": self._settings.shared_head,
            "max_paths": 64,
            "topk": 10,
        }


class MedusaTrainee:
    """A `Trainee`."""

    def __init__(self, checkpoint: Checkpoint, vocabulary: DraftVocabulary, settings: MedusaSettings) -> None:
        self.depth = settings.heads
        self._own = trainable(checkpoint)
        self._vocabulary = vocabulary
        self._settings = settings

    def parameters(self) -> Iterator[nn.Parameter]:
        return iter(self._own.values())

    def draft_logits(self, head: int, states: Tensor) -> Tensor:
        """Of one head, from final states [n, hidden], over the draft vocabulary alone: [n, draft vocabulary]."""
        block, output = _names(self._settings, head)
        return linear(self._own, output, states + functional.silu(linear(self._own, block, states)))

    def losses(self, batch: Batch, noise: torch.Generator) -> Losses:
        """Σ_k λ^k · L_k with L_k the cross-entropy of head k with the answer's own token (section 2.2.1, λ = 0.8).

        Tokens that cannot be drafted teach nothing.
        """
        parts: dict[str, Tensor] = {}
        total = batch.states.new_zeros(())
        for head in range(self.depth):
            labels = self._vocabulary.draft_ids(batch.tokens[batch.ahead(2 + head)])
            taught = batch.is_taught_ahead(1 + head) & (labels >= 0)
            logits = self.draft_logits(head, batch.states[taught])
            loss = mean(functional.cross_entropy(logits, labels[taught], reduction="none"))
            parts[f"head {head + 1}"] = loss
            total = total + self._settings.decay ** (head + 1) * loss
        return Losses(total, parts)

    def agreement(self, batch: Batch) -> Tensor:
        agreed = torch.zeros(len(batch.tokens), self.depth, dtype=torch.bool, device=batch.tokens.device)
        for head in range(self.depth):
            taught = batch.is_taught_ahead(1 + head)
            drafted = self._vocabulary.target_ids[self.draft_logits(head, batch.states[taught]).argmax(-1)]
            agreed[taught, head] = drafted == batch.tokens[batch.ahead(2 + head)][taught]
        return agreed


def _names(settings: MedusaSettings, head: int) -> tuple[str, str]:
    """A head's residual block and output layer, in Medusa-1's layout or in vLLM's."""
    if settings.draft_vocab is None:
        return f"{head}.0.linear", f"{head}.1"
    return f"blocks.{head}.layers.0", "lm_head" if settings.shared_head else f"lm_heads.{head}"


def _silent_block(name: str, hidden: int, device: torch.device) -> dict[str, Tensor]:
    return {
        f"{name}.weight": torch.zeros(hidden, hidden, device=device),
        f"{name}.bias": torch.zeros(hidden, device=device),
    }

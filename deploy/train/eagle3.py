"""How is an EAGLE-3 head trained? It drafts from its own drafts, as it will when it serves, and learns every step.

Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test",
arXiv:2503.01840, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from deploy.train.batches import Batch
from deploy.train.network import DraftLayer, linear, rms_norm, trainable
from deploy.train.rows import ChainRows
from deploy.train.settings import Eagle3Settings
from deploy.train.target import TargetWeights
from deploy.train.trainee import (
    Losses,
    chain_agreement,
    distillation,
    head_config,
    layer_shapes,
    mean,
    random_tensors,
)
from deploy.train.vocabulary import DraftVocabulary
from fleet.errors import ConfigError
from replicas.heads.checkpoint import Checkpoint
from replicas.heads.eagle3 import AUXILIARY

PREFIX = "midlayer"


class Eagle3:
    """Published as EAGLE-3 files are: `midlayer.*`, own `lm_head`, `d2t` and `t2d`; the embedding is the target's."""

    name = "eagle3"

    def __init__(self, settings: Eagle3Settings) -> None:
        self._settings = settings

    def taps(self, layers: int) -> tuple[int, ...]:
        """Low, middle and high as in the paper's code; ConfigError where a target is too shallow for three."""
        taps = (2, layers // 2, layers - 3)
        if sorted(set(taps)) != list(taps):
            raise ConfigError(f"EAGLE-3 reads three different layers, which a target of {layers} layers does not offer")
        return (*taps, layers)

    def vocabulary_size(self, vocab_size: int) -> int:
        return min(self._settings.draft_vocab, vocab_size)

    def initial(self, weights: TargetWeights, vocabulary: DraftVocabulary) -> Checkpoint:
        """The head's output layer starts as the target's own rows for its tokens."""
        settings = self._settings
        low, middle, high, _ = self.taps(weights.config.num_hidden_layers)
        config = head_config(weights, settings) | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": len(vocabulary),
            "eagle_config": {AUXILIARY: [low, middle, high], "use_aux_hidden_state": True},
        }
        hidden = config["hidden_size"]
        shapes = {
            "fc.weight": (hidden, 3 * hidden),
            f"{PREFIX}.input_layernorm.weight": (hidden,),
            f"{PREFIX}.hidden_norm.weight": (hidden,),
            **layer_shapes(PREFIX, config, 2 * hidden),
            "norm.weight": (hidden,),
        }
        tensors = random_tensors(shapes, settings.seed, weights.device)
        tensors["lm_head.weight"] = weights.head[vocabulary.target_ids]
        if len(vocabulary) < vocabulary.vocab_size:
            tensors |= {"d2t": vocabulary.d2t.cpu(), "t2d": vocabulary.t2d.cpu()}
        return Checkpoint(self.name, config, tensors)

    def trainee(self, checkpoint: Checkpoint, weights: TargetWeights, vocabulary: DraftVocabulary) -> Eagle3Trainee:
        return Eagle3Trainee(checkpoint, weights, vocabulary, self._settings)


class Eagle3Trainee:
    """A `Trainee`."""

    def __init__(
        self, checkpoint: Checkpoint, weights: TargetWeights, vocabulary: DraftVocabulary, settings: Eagle3Settings
    ) -> None:
        self.depth = settings.depth
        self._own = trainable(checkpoint)
        self._layer = DraftLayer(self._own, PREFIX, checkpoint.config)
        self._epsilon = float(checkpoint.config["rms_norm_eps"])
        self._weights = weights
        self._vocabulary = vocabulary
        self._settings = settings

    def parameters(self) -> Iterator[nn.Parameter]:
        return iter(self._own.values())

    def fuse(self, states: Tensor) -> Tensor:
        """The target's low, middle and high states side by side, [n, 3 · hidden], to [n, hidden]."""
        return linear(self._own, "fc", states)

    def advance(self, tokens: Tensor, states: Tensor, rows: ChainRows) -> Tensor:
        """States of tokens int64 [n], from the fused or drafted states [n, hidden] before them."""
        embedded = self._normed(f"{PREFIX}.input_layernorm", self._weights.embedding[tokens])
        normed = self._normed(f"{PREFIX}.hidden_norm", states)
        return self._layer(torch.cat((embedded, normed), dim=-1), states, rows)

    def draft_logits(self, states: Tensor) -> Tensor:
        """Over the draft vocabulary alone: [n, draft vocabulary]."""
        return linear(self._own, "lm_head", self._normed("norm", states))

    def _normed(self, name: str, rows: Tensor) -> Tensor:
        return rms_norm(self._own, name, rows, self._epsilon)

    def losses(self, batch: Batch, noise: torch.Generator) -> Losses:
        """Σ_j decay^j · L_j over the unrolled steps j, each the cross-entropy with the target's own distribution.

        From step 1 on a row's state is the head's own output of the step before. Rows whose next token cannot be
        drafted teach nothing; the target's distribution is that over the draft vocabulary.
        """
        rows = ChainRows(batch)
        width = self._weights.embedding.shape[1]
        states, final = self.fuse(batch.states[:, :-width]), batch.states[:, -width:]
        can_be_drafted = self._vocabulary.t2d[batch.tokens]
        parts: dict[str, Tensor] = {}
        total = states.new_zeros(())
        for step in range(self._settings.unroll):
            states = self.advance(batch.tokens[batch.ahead(1 + step)], states, rows)
            taught = batch.is_taught_ahead(1 + step) & can_be_drafted[batch.ahead(2 + step)]
            teacher = self._weights.logits(final[batch.ahead(1 + step)][taught], self._vocabulary.target_ids)
            loss = mean(distillation(self.draft_logits(states[taught]), teacher))
            parts[f"step {step + 1}"] = loss
            total = total + self._settings.decay**step * loss
        return Losses(total, parts)

    def agreement(self, batch: Batch) -> Tensor:
        rows = ChainRows(batch)
        width = self._weights.embedding.shape[1]
        return chain_agreement(
            batch,
            self.depth,
            self.fuse(batch.states[:, :-width]),
            lambda tokens, states: self.advance(tokens, states, rows),
            lambda states: self._vocabulary.target_ids[self.draft_logits(states).argmax(-1)],
        )

"""EAGLE-1 and EAGLE-2 heads: the next hidden state from the last one and the token that followed it.

Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", arXiv:2401.15077, section 3.1; the
checkpoint is that of EAGLE-2 too, which differs only in how it searches. The feature f_i is the target's hidden state
after its final norm. The head predicts f_{i+1} = layer(fc(e(t_{i+1}) ‖ f_i)), where the layer has no norm on its
input, and the target's own output head turns it into logits of t_{i+2}. Where the vocabulary is large that head costs
more than the layer, so a file may name the tokens to draft in `d2t`, as EAGLE-3's do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fleet.errors import ConfigError
from replicas.engine.cut_vocabulary import DRAFT_TO_TARGET, CutVocabulary, offset_vocabulary
from replicas.heads.cache import CachedRows
from replicas.heads.checkpoint import Checkpoint
from replicas.heads.layer import DraftLayer, LayerConfig, layer_config
from replicas.heads.target import Shared

PREFIX = "layers.0"
UNEXPECTED_NORM = f"{PREFIX}.input_layernorm.weight"


class EagleHead:
    """Works on hidden states; see `EagleNetwork`."""

    def __init__(self, checkpoint: Checkpoint, target: Shared) -> None:
        """Raises ConfigError where the file does not fit its config or the target.

        `fc` has a bias exactly where the file holds one: the config's `bias` is absent in files of both kinds.
        """
        if UNEXPECTED_NORM in checkpoint.tensors:
            raise ConfigError(f"{checkpoint.name} is not an EAGLE-1 head: it has '{UNEXPECTED_NORM}' (eagle3?)")
        self.config: LayerConfig = layer_config(checkpoint.name, checkpoint.config)
        hidden = self.config.hidden_size
        target.require(checkpoint.name, hidden_size=hidden, vocab_size=self.config.vocab_size)
        if checkpoint.config.get("bias") is True and "fc.bias" not in checkpoint.tensors:
            raise ConfigError(f"{checkpoint.name}: its config says that 'fc' has a bias, and the file has no 'fc.bias'")
        self._embedding = own_embedding(checkpoint, self.config, target)
        self._fc = checkpoint.linear("fc", hidden, 2 * hidden)
        self._layer = DraftLayer(checkpoint, PREFIX, self.config, hidden)
        self._logits = _output(checkpoint, target)

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def __call__(self, token_ids: Tensor, states: Tensor, rows: CachedRows) -> Tensor:
        fused = self._fc(torch.cat((self._embedding[token_ids], states), dim=-1))
        return self._layer(fused, fused, rows)

    def logits(self, states: Tensor) -> Tensor:
        return self._logits(states)


def _output(checkpoint: Checkpoint, target: Shared) -> Callable[[Tensor], Tensor]:
    """The target's head; for the tokens of the file's `d2t` alone where it has one, which published files have not."""
    offsets = checkpoint.tensors.get(DRAFT_TO_TARGET)
    if offsets is None:
        return target.head
    size = int(checkpoint.config.get("draft_vocab_size") or offsets.numel())
    vocabulary = drafted_vocabulary(checkpoint, size, target.vocab_size)
    head = target.cut_head(vocabulary.token_ids)
    return lambda states: vocabulary.everywhere(head(states))


def own_embedding(checkpoint: Checkpoint, config: LayerConfig, target: Shared) -> Tensor:
    """The checkpoint's embedding [vocab, hidden] where it has one, else the target's."""
    if "embed_tokens.weight" not in checkpoint.tensors:
        return target.embedding
    return checkpoint.take("embed_tokens.weight", config.vocab_size, config.hidden_size)


def drafted_vocabulary(checkpoint: Checkpoint, size: int, vocab_size: int) -> CutVocabulary:
    """The `size` tokens that the checkpoint's `d2t` leads to; ConfigError where it does not, in one line."""
    offsets = checkpoint.take(DRAFT_TO_TARGET, size)
    return offset_vocabulary(offsets, vocab_size, f"{checkpoint.name}: '{DRAFT_TO_TARGET}'")

"""EAGLE-3 heads: tokens straight from a fusion of the target's low, middle and high states.

Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test",
arXiv:2503.01840, section 3.1. For verified tokens the state is g_i = fc(l_i ‖ m_i ‖ h_i); for drafted ones the head's
own output stands in for it. The layer's attention reads norm(e(t_{i+1})) ‖ norm(g_i), and the residual is g_i.
Reads the layout of the EAGLE repository (`midlayer.*`) and that of the speculators library (`layers.0.*`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fleet.errors import ConfigError
from replicas.heads.cache import CachedRows
from replicas.heads.checkpoint import Checkpoint, Norm
from replicas.heads.eagle import drafted_vocabulary, own_embedding
from replicas.heads.layer import DraftLayer, LayerConfig, layer_config
from replicas.heads.target import Shared
from replicas.heads.variants import unsupported_flags

AUXILIARY = "eagle_aux_hidden_state_layer_ids"


def eagle3_taps(checkpoint: Checkpoint, layers: int, *, are_outputs: bool = False) -> tuple[int, ...]:
    """States of the target that are read, by the layer they enter; `layers` is the one after the final norm.

    Ids in the config name layers whose INPUT is meant, as vLLM and the speculators library read them, or their output
    where `are_outputs` (SGLang). Without any they are the paper's: 2, n/2 and n - 3. Raises ConfigError where the
    target does not offer them.
    """
    ids = _flag(checkpoint, AUXILIARY, None)
    taps = (2, layers // 2, layers - 3) if ids is None else _layer_ids(checkpoint.name, ids, are_outputs)
    if len(set(taps)) != len(taps) or not all(0 <= tap <= layers for tap in taps):
        raise ConfigError(
            f"{checkpoint.name} reads the target's states at layers {list(taps)}, which {layers} layers do not offer"
        )
    return taps


def _layer_ids(name: str, ids: object, are_outputs: bool) -> tuple[int, ...]:
    if not isinstance(ids, Sequence) or not all(type(number) is int for number in ids):
        raise ConfigError(f"{name}/config.json: {AUXILIARY} must be a list of layer numbers")
    return tuple(number + are_outputs for number in ids)


class Eagle3Head:
    """Works on fused states; see `EagleNetwork`."""

    def __init__(self, checkpoint: Checkpoint, target: Shared, *, taps: tuple[int, ...]) -> None:
        """`taps`: the states that make a feature, from `eagle3_taps`.

        Raises ConfigError where the file does not fit its config or the target.
        """
        if flags := unsupported_flags(checkpoint.config):
            raise ConfigError(f"{checkpoint.name}/config.json asks for {', '.join(flags)}, which is not supported")
        own = checkpoint.config.get("transformer_layer_config")
        self.config: LayerConfig = layer_config(checkpoint.name, own or checkpoint.config)
        hidden = self.config.hidden_size
        target.require(
            checkpoint.name, hidden_size=_target_width(checkpoint, hidden), vocab_size=self.config.vocab_size
        )
        if "embed_tokens.weight" not in checkpoint.tensors:
            target.require(checkpoint.name, hidden_size=hidden)
        width = len(taps) * target.hidden_size
        self._embedding = own_embedding(checkpoint, self.config, target)
        self._norms = _feature_norms(checkpoint, self.config, width, len(taps))
        self._fc = checkpoint.linear("fc", hidden, width)
        prefix = "midlayer" if "midlayer.hidden_norm.weight" in checkpoint.tensors else "layers.0"
        self._embedding_norm = checkpoint.norm(f"{prefix}.input_layernorm", hidden, self.config.rms_norm_eps)
        self._state_norm = checkpoint.norm(f"{prefix}.hidden_norm", hidden, self.config.rms_norm_eps)
        self._layer = DraftLayer(checkpoint, prefix, self.config, 2 * hidden)
        self._norm = checkpoint.norm("norm", hidden, self.config.rms_norm_eps)
        self._output = _output(checkpoint, hidden, target.vocab_size)
        self._norms_residual = bool(_flag(checkpoint, "norm_before_residual", own is not None))
        self._feeds_back_normed = bool(_flag(checkpoint, "norm_output", False))

    def fuse(self, features: Tensor) -> Tensor:
        if len(self._norms) == 1:
            features = self._norms[0](features)
        elif self._norms:
            parts = features.chunk(len(self._norms), dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self._norms, parts, strict=True)], dim=-1)
        return self._fc(features)

    def __call__(self, token_ids: Tensor, states: Tensor, rows: CachedRows) -> Tensor:
        normed = self._state_norm(states)
        inputs = torch.cat((self._embedding_norm(self._embedding[token_ids]), normed), dim=-1)
        answer = self._layer(inputs, normed if self._norms_residual else states, rows)
        return self._norm(answer) if self._feeds_back_normed else answer

    def logits(self, states: Tensor) -> Tensor:
        return self._output(states if self._feeds_back_normed else self._norm(states))


def _output(checkpoint: Checkpoint, hidden: int, vocab_size: int) -> Callable[[Tensor], Tensor]:
    """The head's own output layer, whose rows stand for the tokens of `d2t` unless it has one for each."""
    weight = checkpoint.tensors.get("lm_head.weight")
    size = int(checkpoint.config.get("draft_vocab_size") or (vocab_size if weight is None else weight.shape[0]))
    head = checkpoint.linear("lm_head", size, hidden)
    if size == vocab_size:
        return lambda rows: head(rows).float()
    vocabulary = drafted_vocabulary(checkpoint, size, vocab_size)
    return lambda rows: vocabulary.everywhere(head(rows).float())


def _target_width(checkpoint: Checkpoint, hidden: int) -> int:
    """Width of the target's states: named, or the head's own."""
    return int(checkpoint.config.get("target_hidden_size") or hidden)


def _feature_norms(checkpoint: Checkpoint, config: LayerConfig, width: int, parts: int) -> list[Norm]:
    """Norms before `fc`: none, one over all states side by side, or one for each of them."""
    epsilon = config.rms_norm_eps
    if _flag(checkpoint, "fc_norm", False):
        each = width // parts
        return [checkpoint.norm(f"fc_norm.{part}", each, epsilon) for part in range(parts)]
    if _flag(checkpoint, "norm_before_fc", False):
        return [checkpoint.norm("input_norm", width, epsilon)]
    return []


def _flag(checkpoint: Checkpoint, key: str, default: Any) -> Any:
    """A setting of the config, at its top or inside `eagle_config`."""
    nested = checkpoint.config.get("eagle_config") or {}
    for table in (checkpoint.config, nested):
        if table.get(key) is not None:
            return table[key]
    return default

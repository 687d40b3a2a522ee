"""The heads' slow twins, from the papers' definitions: float64, one token at a time, no cache but two lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.replicas.heads.checkpoints import LAYERS, VOCABULARY, Files


def target_embedding(vocabulary: int = VOCABULARY, hidden: int = 16) -> Tensor:
    return 0.5 * torch.randn((vocabulary, hidden), generator=torch.Generator().manual_seed(21))


def target_head(vocabulary: int = VOCABULARY, hidden: int = 16) -> Tensor:
    return torch.randn((vocabulary, hidden), generator=torch.Generator().manual_seed(22))


def rms_norm(vector: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return weight * vector / math.sqrt(float(vector @ vector) / len(vector) + epsilon)


def silu(vector: Tensor) -> Tensor:
    return vector / (1 + torch.exp(-vector))


@dataclass
class SlowEagle:
    """Fed pairs (state of a token, the token after it), in order; a copy of the lists is a branch."""

    files: Files
    is_eagle3: bool
    keys: list[list[Tensor]] = field(default_factory=list)
    values: list[list[Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weights = {name: tensor.double() for name, tensor in self.files.tensors.items()}
        self.top: dict[str, Any] = self.files.config
        self.config: dict[str, Any] = self.top.get("transformer_layer_config", self.top)
        self.prefix = "midlayer" if "midlayer.hidden_norm.weight" in self.weights else "layers.0"
        self.embedding = self.weights.get("embed_tokens.weight", target_embedding().double())
        self.epsilon = self.config["rms_norm_eps"]
        heads = self.config["num_attention_heads"]
        self.heads, self.kv_heads = heads, self.config.get("num_key_value_heads", heads)
        self.width = self.config.get("head_dim", self.config["hidden_size"] // heads)

    def branch(self) -> SlowEagle:
        return SlowEagle(self.files, self.is_eagle3, list(self.keys), list(self.values))

    def taps(self) -> tuple[int, ...]:
        if not self.is_eagle3:
            return (LAYERS,)
        named = self.top.get("eagle_config", self.top).get("eagle_aux_hidden_state_layer_ids")
        return tuple(named or (2, LAYERS // 2, LAYERS - 3))

    def fused(self, feature: Tensor) -> Tensor:
        """The state that stands for a verified token."""
        feature = feature.double()
        if not self.is_eagle3:
            return feature
        if self.top.get("norm_before_fc"):
            feature = rms_norm(feature, self.weights["input_norm.weight"], self.epsilon)
        if self.top.get("fc_norm"):
            thirds = feature.reshape(3, -1)
            parts = [rms_norm(part, self.weights[f"fc_norm.{i}.weight"], self.epsilon) for i, part in enumerate(thirds)]
            feature = torch.cat(parts)
        return self.weights["fc.weight"] @ feature

    def step(self, state: Tensor, token_id: int) -> Tensor:
        """The head's output on `token_id`, whose predecessor has the state `state`."""
        embedded = self.embedding[token_id]
        if self.is_eagle3:
            normed = rms_norm(state, self.weights[f"{self.prefix}.hidden_norm.weight"], self.epsilon)
            entering = rms_norm(embedded, self.weights[f"{self.prefix}.input_layernorm.weight"], self.epsilon)
            inputs = torch.cat([entering, normed])
            residual = normed if self.top.get("norm_before_residual") else state
        else:
            inputs = self._linear("fc", torch.cat([embedded, state]))
            residual = inputs
        output = self._layer(inputs, residual)
        if self.top.get("norm_output"):
            output = rms_norm(output, self.weights["norm.weight"], self.epsilon)
        return output

    def logits(self, output: Tensor) -> Tensor:
        """Of the token after the one that `output` is of, over the target's vocabulary."""
        offsets = self.files.tensors.get("d2t")
        if not self.is_eagle3:
            every = target_head().double() @ output
            return every if offsets is None else torch.where(_can_be_drafted(offsets), every, -math.inf)
        if not self.top.get("norm_output"):
            output = rms_norm(output, self.weights["norm.weight"], self.epsilon)
        drafted = self.weights["lm_head.weight"] @ output
        logits = torch.full((VOCABULARY,), -math.inf, dtype=torch.float64)
        for draft_id, logit in enumerate(drafted.tolist()):
            logits[draft_id + (0 if offsets is None else int(offsets[draft_id]))] = logit
        return logits

    def _linear(self, name: str, vector: Tensor) -> Tensor:
        answer = self.weights[f"{name}.weight"] @ vector
        bias = self.weights.get(f"{name}.bias")
        return answer if bias is None else answer + bias

    def _layer(self, inputs: Tensor, residual: Tensor) -> Tensor:
        position = len(self.keys)
        attention, mlp = f"{self.prefix}.self_attn", f"{self.prefix}.mlp"
        queries = self._linear(f"{attention}.q_proj", inputs).reshape(self.heads, self.width)
        keys = self._linear(f"{attention}.k_proj", inputs).reshape(self.kv_heads, self.width)
        values = self._linear(f"{attention}.v_proj", inputs).reshape(self.kv_heads, self.width)
        self.keys.append([self._turned(key, position) for key in keys])
        self.values.append(list(values))
        mixed = [self._attend(head, self._turned(query, position)) for head, query in enumerate(queries)]
        residual = residual + self._linear(f"{attention}.o_proj", torch.cat(mixed))
        normed = rms_norm(residual, self.weights[f"{self.prefix}.post_attention_layernorm.weight"], self.epsilon)
        gated = silu(self._linear(f"{mlp}.gate_proj", normed)) * self._linear(f"{mlp}.up_proj", normed)
        return residual + self._linear(f"{mlp}.down_proj", gated)

    def _attend(self, head: int, query: Tensor) -> Tensor:
        shared = head * self.kv_heads // self.heads
        is_sliding = self.config.get("layer_types", [""])[0] == "sliding_attention"
        seen = self.config["sliding_window"] if is_sliding else len(self.keys)
        scores = torch.stack([query @ key[shared] for key in self.keys[-seen:]]) / math.sqrt(self.width)
        weights = torch.exp(scores - scores.max())
        weights = weights / weights.sum()
        return sum((w * v[shared] for w, v in zip(weights, self.values[-seen:], strict=True)), torch.zeros(self.width))

    def _turned(self, vector: Tensor, position: int) -> Tensor:
        """Channels i and i + D/2 are a complex number that is multiplied by e^(i · position · frequency)."""
        half = self.width // 2
        angles = torch.tensor([position * self._frequency(i) for i in range(half)], dtype=torch.float64)
        turned = torch.complex(vector[:half], vector[half:]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag])

    def _frequency(self, i: int) -> float:
        theta = self.config.get("rope_parameters", self.config).get("rope_theta", 10000.0)
        frequency = theta ** (-2 * i / self.width)
        scaling = self.config.get("rope_scaling")
        if scaling is None:
            return float(frequency)
        wavelength, context = 2 * math.pi / frequency, scaling["original_max_position_embeddings"]
        if wavelength < context / scaling["high_freq_factor"]:
            return float(frequency)
        if wavelength > context / scaling["low_freq_factor"]:
            return float(frequency / scaling["factor"])
        blend = (context / wavelength - scaling["low_freq_factor"]) / (
            scaling["high_freq_factor"] - scaling["low_freq_factor"]
        )
        return float((1 - blend) * frequency / scaling["factor"] + blend * frequency)


def _can_be_drafted(offsets: Tensor) -> Tensor:
    drafted = {draft_id + offset for draft_id, offset in enumerate(offsets.tolist())}
    return torch.tensor([token_id in drafted for token_id in range(VOCABULARY)])


def greedy_tree(slow: SlowEagle, state: Tensor, counts: Sequence[int]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Likeliest tokens by path of ranks; every branch is run as a chain of its own."""
    found: dict[tuple[int, ...], tuple[int, ...]] = {}

    def descend(at: SlowEagle, state: Tensor, path: tuple[int, ...], tokens: tuple[int, ...]) -> None:
        if len(path) == len(counts):
            return
        order = torch.argsort(slow.logits(state), descending=True).tolist()
        for rank in range(counts[len(path)]):
            found[(*path, rank)] = (*tokens, order[rank])
            child = at.branch()
            descend(child, child.step(state, order[rank]), (*path, rank), found[(*path, rank)])

    descend(slow, state, (), ())
    return found


def medusa_logits(files: Files, head: int, state: Tensor) -> Tensor:
    """W2 · (h + SiLU(W1 · h + b)), repeated for every residual block."""
    weights = {name: tensor.double() for name, tensor in files.tensors.items() if name != "token_map"}
    hidden, block = state.double(), 0
    is_converted = "blocks.0.layers.0.weight" in weights
    name = f"blocks.{head}.layers.0" if is_converted else f"{head}.0.linear"
    while f"{name}.weight" in weights:
        inner = weights[f"{name}.weight"] @ hidden + weights.get(f"{name}.bias", torch.zeros(len(hidden)))
        hidden, block = hidden + silu(inner), block + 1
        name = f"blocks.{head}.layers.{block}" if is_converted else f"{head}.{block}.linear"
    output = f"{head}.{block}.weight"
    if is_converted:
        output = f"lm_heads.{0 if files.config['original_lm_head'] else head}.weight"
    logits = weights[output] @ hidden
    token_map = files.tensors.get("token_map")
    if token_map is None:
        return logits
    everywhere = torch.full((VOCABULARY,), -math.inf, dtype=torch.float64)
    for row, token_id in enumerate(token_map.tolist()):
        everywhere[token_id] = logits[token_id] if len(logits) == VOCABULARY else logits[row]
    return everywhere

"""By which angles do positions rotate queries and keys? RoPE (Su et al., arXiv:2104.09864) and its long-context kin."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from replicas.engine.decoder_config import Rope


@dataclass(frozen=True, slots=True)
class Rotation:
    """Turns positions into what their queries and keys are multiplied by."""

    frequencies: Tensor
    """Radians per position of each pair of channels: float32 `[head_dim / 2]`."""
    temperature: Tensor
    """YaRN's scaling of queries and keys, otherwise 1: float32 scalar."""

    @classmethod
    def of(cls, rope: Rope, head_dim: int, device: torch.device) -> Rotation:
        return cls(frequencies(rope, head_dim).to(device), torch.tensor(_temperature(rope), device=device))

    def at(self, positions: Tensor) -> Tensor:
        """temperature · e^(i · position · frequency) (arXiv:2104.09864, equation 34): complex64 `[n, 1, pairs]`."""
        angles = torch.outer(positions.float(), self.frequencies)
        return torch.polar(self.temperature.expand_as(angles), angles)[:, None]


def rotate(heads: Tensor, rotation: Tensor) -> None:
    """Rotate `[tokens, heads, head_dim]` in place; the channels of a pair lie side by side."""
    wide = heads.float()
    torch.view_as_complex(wide.view(*wide.shape[:-1], -1, 2)).mul_(rotation)
    if wide is not heads:
        heads.copy_(wide)


def pair_channels(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder `[heads * head_dim, ...]` so that the channels which rotate together lie side by side.

    Checkpoints keep channel i and channel i + head_dim / 2 for a pair. Scores are sums over channels, so the same
    order in queries and keys changes none, and one complex product rotates all of them.
    """
    return rows.view(-1, 2, head_dim // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Radians per position of each pair of channels: float32 `[head_dim / 2]`."""
    plain = 1.0 / rope.rope_theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    match rope.rope_type:
        case "linear":  # position interpolation (Chen et al., arXiv:2306.15595, equation 4)
            return plain / rope.factor
        case "llama3":
            return _llama3(rope, plain)
        case "yarn":
            return _yarn(rope, plain)
        case _:
            return plain


def _llama3(rope: Rope, plain: Tensor) -> Tensor:
    """Long waves are stretched by the factor, short ones kept, those between interpolated (Llama 3.1's release)."""
    turns = rope.original_max_position_embeddings * plain / (2 * math.pi)
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return (1 - kept) * plain / rope.factor + kept * plain


def _yarn(rope: Rope, plain: Tensor) -> Tensor:
    """NTK by parts (Peng et al., arXiv:2309.00071, definition 2), the ramp linear in the channel as in its code."""
    pairs = len(plain)
    low = _channel_of(rope, rope.beta_fast or 32.0, 2 * pairs)
    high = _channel_of(rope, rope.beta_slow or 1.0, 2 * pairs)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    ramp = (torch.arange(pairs, dtype=torch.float32) - low) / ((high - low) or 0.001)
    stretched = ramp.clamp(0.0, 1.0)
    return stretched * plain / rope.factor + (1 - stretched) * plain


def _channel_of(rope: Rope, turns: float, head_dim: int) -> float:
    """The pair of channels that turns so many times over the original context."""
    context = rope.original_max_position_embeddings
    return head_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(rope.rope_theta))


def _temperature(rope: Rope) -> float:
    """YaRN's scaling of queries and keys (arXiv:2309.00071, equation 22), unless the config names its own."""
    if rope.rope_type != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

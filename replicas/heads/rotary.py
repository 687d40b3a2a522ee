"""Rotary position embedding of a draft layer, from whatever its config says about it (arXiv:2104.09864)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fleet.errors import ConfigError

DEFAULT_THETA = 10000.0
"""What a Llama config means that names no theta; never the target's."""


class Rotary:
    """Turns query and key channels i and i + D/2 together by position · theta^(-2i/D)."""

    def __init__(self, frequencies: Tensor) -> None:
        """`frequencies`: radians per position, float32 [head_dim / 2]."""
        self._frequencies = frequencies

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, float32 [n, 1, head_dim], of int64 positions [n]."""
        turns = positions[:, None].float() * self._frequencies.to(positions.device)
        both = torch.cat((turns, turns), dim=-1)[:, None]
        return both.cos(), both.sin()


def rotate(rows: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rows [n, heads, head_dim] turned by `Rotary.angles`."""
    cosines, sines = angles
    left, right = rows.float().chunk(2, dim=-1)
    return (rows * cosines + torch.cat((-right, left), dim=-1) * sines).to(rows.dtype)


def rotary_from(config: Mapping[str, Any], head_dim: int) -> Rotary:
    """Read `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling`.

    Raises ConfigError for a scaling that this project does not know.
    """
    table = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = float(table.get("rope_theta") or config.get("rope_theta") or DEFAULT_THETA)
    frequencies = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    match table.get("rope_type") or table.get("type") or "default":
        case "default":
            return Rotary(frequencies)
        case "linear":
            return Rotary(frequencies / float(table["factor"]))
        case "llama3":
            return Rotary(_llama3(frequencies, table))
        case kind:
            raise ConfigError(f"the head's rotary embedding '{kind}' is not supported (default, linear, llama3)")


def _llama3(frequencies: Tensor, table: Mapping[str, Any]) -> Tensor:
    """Long waves are stretched by `factor`, short ones left alone, those between blended (Llama 3.1)."""
    factor, context = float(table["factor"]), float(table["original_max_position_embeddings"])
    low, high = float(table["low_freq_factor"]), float(table["high_freq_factor"])
    share = ((context * frequencies / (2 * math.pi) - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (share + (1 - share) / factor)

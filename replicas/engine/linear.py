"""Linear layers for inference: on CPUs laid out once for oneDNN, so that a few rows cost hardly more than one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

ROWS_HINT = 8
"""oneDNN's layout is chosen for so many rows, a typical decoding step; any number of rows works."""


class Linear(Protocol):
    """`[rows, in]` to a new `[rows, out]`."""

    def __call__(self, rows: Tensor) -> Tensor:
        """The product with the weights, plus the bias."""


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """A layer with weight `[out, in]` on the device that this lies on."""
    if weight.device.type == "cpu":
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """The weights as they are."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, rows: Tensor) -> Tensor:
        return functional.linear(rows, self.weight, self.bias)


class PackedLinear:
    """The weights in oneDNN's own blocked layout.

    Against the plain layer, at 576 × 1536 in float32 on two cores: 0.12 ms for 1 row and 0.14 ms for 5, before
    0.14 and 0.31. Verifying drafted tokens pays only because of that.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT)
        self._bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        answer: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return answer


def compute_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The number format to compute in, for weights in `dtype` (bfloat16 or float32).

    A CPU without bfloat16 instructions emulates them five to ten times slower than float32, so there the same
    bfloat16 weights are widened: the answer is at least as exact, for twice the memory.
    """
    wanted: torch.dtype = getattr(torch, dtype)
    if device.type == "cpu" and wanted == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.float32
    return wanted

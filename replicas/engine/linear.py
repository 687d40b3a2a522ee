"""Linear layers for inference: on CPUs laid out once, so that a few rows cost hardly more than one."""

from __future__ import annotations

import math
import platform
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from replicas.engine.footprint import Keeping, Layout

FP16_ENGINES = ("x86", "fbgemm")
"""torch's quantized engines that multiply by float16 weights."""
CHECKED_ROWS = 4096
"""Of a weight at once: what the check needs beside it stays small."""
ROWS_MULTIPLE = 1 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 3
"""FBGEMM's AVX2 kernels for 1 and 2 rows sum in another order than those that a multiple of 3 is split into; padded, a
row's result does not depend on how many others come with it. Those for AVX-512 need no padding."""
ROWS_HINT = 8
"""oneDNN's layout is chosen for so many rows, a typical decoding step; any number of rows works."""


class Linear(Protocol):
    """`[rows, in]` to a new `[rows, out]`."""

    @property
    def unscale(self) -> float:
        """What `scaled` is to be multiplied by."""

    def __call__(self, rows: Tensor) -> Tensor:
        """The product with the weights, plus the bias."""

    def scaled(self, rows: Tensor) -> Tensor:
        """The same but for a factor that the caller brings in on its way; rows come by `ROWS_MULTIPLE`."""


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """A layer with weight `[out, in]` on the device that this lies on."""
    layout = layout_on(weight.device, weight.dtype)
    if layout is Layout.PLAIN:
        return PlainLinear(weight, bias)
    if layout is Layout.HALF:
        scale = fp16_scale(weight)
        if fits_fp16(weight, scale) and (bias is None or bool((bias * scale).isfinite().all())):
            return HalfLinear(weight, bias, scale)
    return PackedLinear(weight, bias)


def layout_on(device: torch.device, dtype: torch.dtype) -> Layout:
    """How `make_linear` keeps weights that are computed with in `dtype`."""
    if device.type != "cpu":
        return Layout.PLAIN
    has_half = dtype == torch.float32 and torch.backends.quantized.engine in FP16_ENGINES
    return Layout.HALF if has_half else Layout.PACKED


def keeping_on(device: torch.device, dtype: str) -> Keeping:
    """How a model of this dtype, bfloat16 or float32, is kept: what every count of bytes goes by."""
    computed = compute_dtype(dtype, device)
    return Keeping(computed.itemsize, layout_on(device, computed))


class PlainLinear:
    """The weights as they are."""

    unscale = 1.0

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        return functional.linear(rows, self._weight, self._bias)

    def scaled(self, rows: Tensor) -> Tensor:
        return self(rows)


class PackedLinear:
    """The weights in oneDNN's own blocked layout.

    Against the plain layer, at 576 × 1536 in float32 on two cores: 0.12 ms for 1 row and 0.14 ms for 5, before
    0.14 and 0.31. Verifying drafted tokens pays only because of that.
    """

    unscale = 1.0

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT)
        self._bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        answer: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return answer

    def scaled(self, rows: Tensor) -> Tensor:
        return self(rows)


class HalfLinear:
    """Weights kept as float16 and widened in registers; rows, sums and results are float32 (FBGEMM).

    A decoding step is bound by reading the weights, and this reads half as much. All products of a step at 135M
    parameters on two cores, in float32 and so, in ms for 1, 4 and 24 rows: 27, 29, 47 and 16, 17, 38 with AVX-512.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, scale: float) -> None:
        """`scale` is a power of two that brings the weights into float16's range."""
        self._weight = torch.ops.quantized.linear_prepack_fp16(weight * scale, None if bias is None else bias * scale)
        self.unscale = 1 / scale

    def __call__(self, rows: Tensor) -> Tensor:
        padded = functional.pad(rows, (0, 0, 0, -len(rows) % ROWS_MULTIPLE)) if len(rows) % ROWS_MULTIPLE else rows
        return self.scaled(padded)[: len(rows)].mul_(self.unscale)

    def scaled(self, rows: Tensor) -> Tensor:
        answer: Tensor = torch.ops.quantized.linear_dynamic_fp16(rows, self._weight)
        return answer


def fp16_scale(weight: Tensor) -> float:
    """The power of two that brings the largest weight just below 2^15, float16's highest full binade.

    2^127 at the most, float32's own highest: subnormal weights stay smaller.
    """
    largest = float(weight.abs().max())
    return 2.0 ** min(127, 15 - math.frexp(largest)[1]) if 0 < largest < math.inf else 1.0


def fits_fp16(weight: Tensor, scale: float) -> bool:
    """Whether scaled float16 holds the weights up to 2^-32 of the largest, a 256th of what float32 rounds that by.

    Weights that were bfloat16 do: float16 has more bits, and only those below 2^-32 of the largest fall short.
    """
    most = float(weight.abs().max()) * 2**-32
    parts = torch.split(weight, CHECKED_ROWS)
    return all(float(_rounded(part, scale).sub_(part).abs_().max()) <= most for part in parts)


def _rounded(weight: Tensor, scale: float) -> Tensor:
    return weight.mul(scale).to(torch.float16).float().div_(scale)


def compute_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The number format to compute in, for weights in `dtype` (bfloat16 or float32).

    A CPU without bfloat16 instructions emulates them, several times slower than float32 as soon as there are some rows,
    so there the same bfloat16 weights are widened: the answer is at least as exact. Linear layers keep theirs in half
    the bytes.
    """
    wanted: torch.dtype = getattr(torch, dtype)
    is_emulated = device.type == "cpu" and wanted == torch.bfloat16 and not has_bfloat16()
    return torch.float32 if is_emulated else wanted


@cache
def has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 itself. oneDNN says yes to any x86 with AVX-512, and emulates on most."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    is_native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and (is_native or not is_x86)

"""Linear layers on a CPU: which layout is chosen, what it computes, and that a row is what it is in any company."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from replicas.engine.linear import FP16_ENGINES, HalfLinear, PackedLinear, fits_fp16, fp16_scale, make_linear

needs_fp16 = pytest.mark.skipif(
    torch.backends.quantized.engine not in FP16_ENGINES, reason="this torch multiplies by no float16 weights"
)
OUT, IN = 40, 96


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def as_bfloat16(weight: Tensor) -> Tensor:
    return weight.bfloat16().float()


@needs_fp16
@pytest.mark.parametrize("size", [1e-30, 0.02, 1.0, 3e4, 1e30])
@pytest.mark.parametrize("has_bias", [False, True])
def test_weights_that_were_bfloat16_lose_nothing_in_half_the_bytes(size: float, has_bias: bool) -> None:
    weight = as_bfloat16(drawn(OUT, IN) * size)
    bias = drawn(OUT, seed=2) if has_bias else None
    layer = make_linear(weight, bias)
    assert isinstance(layer, HalfLinear)
    rows = drawn(11, IN, seed=1)
    exact = rows.double() @ weight.double().T + (0 if bias is None else bias.double())
    allowed = 2**-24 * (rows.abs().double() @ weight.abs().double().T) * 8 + 1e-6
    assert ((layer(rows) - exact).abs() <= allowed).all()


@needs_fp16
@pytest.mark.parametrize("rows", range(1, 50))
def test_a_row_is_the_same_alone_and_in_any_company(rows: int) -> None:
    layer = make_linear(as_bfloat16(drawn(OUT, IN)))
    many = drawn(60, IN, seed=1)
    assert torch.equal(layer(many[5 : 5 + rows]), layer(many)[5 : 5 + rows])


@needs_fp16
def test_subnormal_weights_are_no_error_and_a_bias_beyond_their_scale_is_kept() -> None:
    weight = as_bfloat16(torch.tensor([[9e-41, 0.0]]))
    assert fits_fp16(weight, fp16_scale(weight))
    assert isinstance(make_linear(weight, torch.tensor([1.0])), HalfLinear)
    layer = make_linear(weight, torch.tensor([8.0]))
    assert isinstance(layer, PackedLinear)
    assert layer(torch.ones(1, 2)).item() == 8.0


def test_weights_of_full_float32_stay_as_they_are() -> None:
    layer = make_linear(drawn(OUT, IN))
    assert isinstance(layer, PackedLinear)
    rows = drawn(3, IN, seed=1)
    torch.testing.assert_close(layer(rows), rows @ drawn(OUT, IN).T)


@given(st.floats(1e-30, 1e30))
def test_the_largest_weight_is_brought_just_below_two_to_the_fifteenth(largest: float) -> None:
    weight = torch.tensor([[largest, -largest / 3]])
    scaled = float(weight.abs().max()) * fp16_scale(weight)
    assert 2**14 <= scaled <= 2**15


def test_no_weight_at_all_and_unusable_ones_are_no_error() -> None:
    assert fits_fp16(torch.zeros(2, 3), fp16_scale(torch.zeros(2, 3)))
    broken = torch.tensor([[1.0, float("inf")]])
    assert not fits_fp16(broken, fp16_scale(broken))


def test_only_weights_far_below_the_largest_are_rounded() -> None:
    smallest = as_bfloat16(torch.tensor([[1.0, 2**-31 * 1.9921875], [2**-45, 0.0]]))
    assert fits_fp16(smallest, fp16_scale(smallest))
    assert not fits_fp16(torch.tensor([[1.0, 0.1]]), fp16_scale(torch.tensor([[1.0, 0.1]])))


def test_an_unaligned_number_of_checked_rows_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicas.engine.linear.CHECKED_ROWS", 7)
    weight = as_bfloat16(drawn(OUT, IN))
    assert fits_fp16(weight, fp16_scale(weight))
    weight[OUT - 1, 0] = 0.1
    assert not fits_fp16(weight, fp16_scale(weight))

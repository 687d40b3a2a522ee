"""What is counted before loading is what loading takes: every layer, every number format, every family."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig

from deploy.bench.allocated import allocated_bytes
from replicas.engine import weights
from replicas.engine.decoder_config import load_config
from replicas.engine.footprint import NARROW, Footprint, Keeping, Layout, LinearSize, footprint_of
from replicas.engine.linear import FP16_ENGINES, fits_fp16, fp16_scale, keeping_on, make_linear
from replicas.engine.model import load_model
from replicas.heads.footprint import head_footprint
from replicas.memory_check import stored_footprint
from tests.tiny_models import SIZES, family_configs, tiny_model_folder

CPU = torch.device("cpu")
FAMILIES = family_configs()
CONFIGS = {**FAMILIES, "llama-tied": LlamaConfig(**SIZES, tie_word_embeddings=True)}
has_half = torch.backends.quantized.engine in FP16_ENGINES
NUMBERS = st.lists(st.floats(-(2.0**15), 2.0**15), min_size=1, max_size=12)


@pytest.mark.parametrize("columns", [512, 576, 1536])
@pytest.mark.parametrize("is_narrow", [True, False])
def test_a_layer_takes_as_many_bytes_as_are_counted_for_it(columns: int, is_narrow: bool) -> None:
    weight = torch.randn(3000, columns, generator=torch.Generator().manual_seed(0))
    weight = weight.bfloat16().float() if is_narrow else weight
    make_linear(weight)  # what the library keeps for itself from its first use on
    before = allocated_bytes()
    layer = make_linear(weight)
    taken = allocated_bytes() - before
    assert taken == pytest.approx(
        keeping_on(CPU, "float32").linear_bytes(LinearSize(3000, columns, is_narrow)), rel=0.02
    )
    assert layer is not None


@pytest.mark.skipif(not has_half, reason="this torch multiplies by no float16 weights")
@given(st.sampled_from(sorted(NARROW)), NUMBERS, st.integers(-20, 20))
def test_values_of_a_narrow_format_fit_into_half_the_bytes(name: str, numbers: list[float], power: int) -> None:
    exponent = power if name == "bfloat16" else 0
    weight = (torch.tensor([numbers], dtype=torch.float64) * 2.0**exponent).to(getattr(torch, name)).float()
    assert fits_fp16(weight, fp16_scale(weight))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_layer_that_is_laid_out_is_counted_and_all_other_numbers_too(
    name: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model_folder(tmp_path / "model", CONFIGS[name])
    laid_out: list[int] = []

    def noted(weight: Tensor, bias: Tensor | None = None) -> weights.Linear:
        laid_out.append(weight.numel() + (0 if bias is None else bias.numel()))
        return make_linear(weight, bias)

    monkeypatch.setattr(weights, "make_linear", noted)
    config = load_config(folder)
    load_model(folder, dtype=dtype, device="cpu", kv_tokens=8)
    footprint = stored_footprint(folder, config, dtype)
    counted = [*footprint.linears, *([footprint.tied_head] if footprint.tied_head else [])]
    biases = sum(laid_out) - sum(layer.numbers for layer in counted)
    assert 0 <= biases <= footprint.numbers - config.vocab_size * config.hidden_size
    assert (biases > 0) == config.has_qkv_bias
    assert all(layer.is_narrow == (dtype == "bfloat16") for layer in counted)


def test_a_tied_head_is_a_copy_in_every_layout_but_the_plain_one() -> None:
    head = LinearSize(100, 512, True)
    footprint = Footprint((LinearSize(16, 512, True),), 1000, head)
    assert footprint.bytes_in(Keeping(2, Layout.PLAIN)) == 2 * (16 * 512 + 1000)
    assert footprint.bytes_in(Keeping(2, Layout.PACKED)) == 2 * (16 * 512 + 1000 + 100 * 512)
    assert footprint.bytes_in(Keeping(4, Layout.HALF)) == 2 * 16 * 512 + 4 * 1000 + 2 * 112 * 512
    assert footprint.loading_bytes(Keeping(2, Layout.PLAIN)) == 0
    assert footprint.loading_bytes(Keeping(4, Layout.HALF)) == 4 * 100 * 512
    assert replace(footprint, tied_head=None).loading_bytes(Keeping(4, Layout.HALF)) == 8 * 16 * 512


def test_what_only_fills_up_blocks_is_kept_but_not_read() -> None:
    half, wide = LinearSize(10, 500, True), LinearSize(10, 500, False)
    for layer, read, kept in ((half, 2 * 5000, 2 * 16 * 512), (wide, 4 * 5000, 4 * 5000)):
        footprint = Footprint((layer,), 100, copied=layer)
        assert footprint.read_bytes(Keeping(4, Layout.HALF)) == 400 + 2 * read
        assert footprint.bytes_in(Keeping(4, Layout.HALF)) == 400 + 2 * kept
        assert footprint.all_numbers == footprint.parameters + 5000 == 10_100


@given(st.integers(1, 5000), st.integers(1, 5000), st.booleans())
def test_no_layout_takes_fewer_bytes_than_its_numbers_have(rows: int, columns: int, is_narrow: bool) -> None:
    layer = LinearSize(rows, columns, is_narrow)
    for keeping in (Keeping(4, Layout.HALF), Keeping(4, Layout.PACKED), Keeping(2, Layout.PLAIN)):
        each = 2 if is_narrow and keeping.layout is Layout.HALF else keeping.number_bytes
        assert each * layer.numbers <= keeping.linear_bytes(layer)


def test_embeddings_norms_and_biases_are_no_layers() -> None:
    shapes = {"embed_tokens.weight": (10, 4), "fc.weight": (4, 8), "fc.bias": (4,), "norm.weight": (4,)}
    footprint = footprint_of(shapes, narrow={"fc.weight"})
    assert footprint.linears == (LinearSize(4, 8, True),)
    assert footprint.numbers == 40 + 4 + 4
    assert footprint.parameters == 80


def test_a_loaded_model_keeps_no_file_mapped(tmp_path: Path) -> None:
    """Otherwise parts of it would be read from the disk again where memory is short, and break when it is replaced."""
    folder = tiny_model_folder(tmp_path / "model")
    model = load_model(folder, dtype="float32", device="cpu", kv_tokens=8)
    assert str(folder) not in Path("/proc/self/maps").read_text()
    assert model.kv_tokens == 8


def test_rows_that_a_head_borrows_are_counted_in_every_layout_and_are_no_parameters_of_its_own() -> None:
    shapes = {"fc.weight": (576, 1152), "d2t": (100,)}
    head = head_footprint(shapes, narrow={"fc.weight"}, is_target_narrow=True)
    assert head.copied == LinearSize(100, 576, True)
    assert head.parameters == 576 * 1152
    assert head.bytes_in(Keeping(2, Layout.PLAIN)) == 2 * (576 * 1152 + 100 * 576)
    assert head.bytes_in(Keeping(4, Layout.HALF)) == 2 * (576 * 1536 + 112 * 1024)
    own_output = shapes | {"lm_head.weight": (100, 576)}
    assert head_footprint(own_output, narrow=(), is_target_narrow=True).copied is None


@pytest.mark.parametrize("is_target_narrow", [True, False])
def test_borrowed_rows_are_as_narrow_as_the_target_whatever_the_head_is(is_target_narrow: bool) -> None:
    shapes = {"fc.weight": (576, 1152), "d2t": (100,)}
    for narrow in ((), {"fc.weight"}):
        head = head_footprint(shapes, narrow, is_target_narrow=is_target_narrow)
        assert head.copied == LinearSize(100, 576, is_target_narrow)
        assert head.linears == (LinearSize(576, 1152, bool(narrow)),)


def test_medusas_output_layers_are_cut_to_their_token_map() -> None:
    shapes = {"blocks.0.layers.0.weight": (8, 8), "lm_head.weight": (50, 8), "token_map": (20,)}
    for rows in (50, 20):
        stored = shapes | {"lm_head.weight": (rows, 8)}
        assert head_footprint(stored, narrow=(), is_target_narrow=True).parameters == 64 + 20 * 8

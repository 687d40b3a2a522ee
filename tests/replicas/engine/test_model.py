from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, LlamaConfig

from fleet.errors import ConfigError, OutOfMemory
from replicas.engine.decoder_config import load_config
from replicas.engine.model import Model, allocation_failures, load_model
from replicas.engine.packing import Segment
from tests.tiny_models import SIZES, family_configs, tiny_model_folder

pytestmark = pytest.mark.usefixtures("way")

LONG, SHORT = tuple(range(20, 43)), tuple(range(100, 109))


@pytest.fixture(params=sorted(family_configs()))
def family_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tiny_model_folder(tmp_path / "model", family_configs()[request.param], is_varied=True)


def load(folder: Path, layers: int | None = None) -> Model:
    return load_model(folder, dtype="float32", device="cpu", kv_tokens=200, layers=layers)


def logits(model: Model, segments: Sequence[Segment]) -> Tensor:
    return model.forward(segments).logits


@torch.inference_mode()
def reference_logits(folder: Path, token_ids: tuple[int, ...], layers: int | None = None) -> Tensor:
    """What transformers itself computes, without a cache: one row per token."""
    config = AutoConfig.from_pretrained(folder)
    if layers is not None:
        config.num_hidden_layers = layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:layers]
    plain = AutoModelForCausalLM.from_pretrained(
        folder, config=config, attn_implementation="eager", dtype=torch.float32
    )
    expected: Tensor = plain(torch.tensor([token_ids])).logits[0]
    return expected


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("layers", [None, 2])
def test_chunks_batches_moves_and_many_rows_agree_with_transformers(family_folder: Path, layers: int | None) -> None:
    model = load(family_folder, layers)
    long, short = reference_logits(family_folder, LONG, layers), reference_logits(family_folder, SHORT, layers)

    chunks = logits(model, [Segment(50, 0, LONG[:7], 7), Segment(3, 0, SHORT[:5], 2)])
    assert_close(chunks, torch.cat([long[:7], short[3:5]]))

    model.move(50, 100, 7)
    mixed = logits(model, [Segment(3, 5, SHORT[5:6], 1), Segment(100, 7, LONG[7:20], 13)])
    assert_close(mixed, torch.cat([short[5:6], long[7:20]]))

    wrong = (9, 9, 9)
    model.forward([Segment(100, 20, LONG[20:21] + wrong, 4), Segment(3, 6, SHORT[6:7], 0)])
    after_rollback = logits(model, [Segment(100, 21, LONG[21:], 2), Segment(3, 7, SHORT[7:], 1)])
    assert_close(after_rollback, torch.cat([long[21:], short[-1:]]))


def test_a_move_may_overlap_itself(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path)
    model = load(folder)
    model.forward([Segment(40, 0, LONG[:22], 0)])
    model.move(40, 31, 22)
    assert_close(logits(model, [Segment(31, 22, LONG[22:], 1)]), reference_logits(folder, LONG)[22:])


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path, LlamaConfig(**{**SIZES, "initializer_range": 0.05}))
    model = load_model(folder, dtype="bfloat16", device="cpu", kv_tokens=100)
    found = logits(model, [Segment(0, 0, LONG, len(LONG))])
    assert found.dtype == torch.float32
    expected = reference_logits(folder, LONG)
    assert (found - expected).abs().max() < 0.05 * expected.abs().max()


def test_an_unsupported_architecture_is_named(tmp_path: Path) -> None:
    GPT2Config().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="architecture 'gpt2' is not supported"):
        load(tmp_path)


def test_a_rotation_that_depends_on_the_batch_is_refused(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    LlamaConfig(**SIZES, rope_parameters=rope).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="rotary embedding 'dynamic'"):
        load_config(tmp_path)


def test_sizes_beyond_the_model_are_refused(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path)
    with pytest.raises(ConfigError, match="layers 5 exceeds the model's 4"):
        load(folder, layers=5)
    with pytest.raises(ConfigError, match="max_model_len 512 exceeds the model's context of 256"):
        load_model(folder, dtype="float32", device="cpu", kv_tokens=10, max_model_len=512)


def test_a_real_failure_of_the_allocator_is_out_of_memory() -> None:
    with pytest.raises(OutOfMemory, match="allocate"), allocation_failures():
        torch.empty(2**55, dtype=torch.uint8)


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"), allocation_failures():
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_an_arena_that_does_not_fit_is_out_of_memory(tmp_path: Path) -> None:
    with pytest.raises(OutOfMemory):
        load_model(tiny_model_folder(tmp_path), dtype="float32", device="cpu", kv_tokens=2**45)

"""Steps by compiled kernels compute what launched ones do, in float32, and a row is the same in any company."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig

from replicas.engine import model as model_module
from replicas.engine.fused import kernels, steps
from replicas.engine.linear import FP16_ENGINES
from replicas.engine.model import DecoderModel, load_model
from replicas.engine.packing import Segment
from tests.replicas.engine.stories import EXTENT, KV_TOKENS, growing
from tests.tiny_models import family_configs, tiny_model_folder

WEIGHTS = "model.safetensors"
FUSED = ("llama", "mistral", "qwen2", "qwen2-sliding")


def load(folder: Path) -> DecoderModel:
    return load_model(folder, dtype="float32", device="cpu", kv_tokens=KV_TOKENS, taps=(0, 2, 4))


@dataclass
class Pair:
    """The same model twice, once without kernels."""

    fused: DecoderModel
    launched: DecoderModel

    @torch.inference_mode()
    def poison(self) -> None:
        """Whatever reads what was never written gets no number."""
        for each in (self.fused, self.launched):
            each._arena.memory.fill_(torch.nan)

    def step(self, segments: Sequence[Segment]) -> None:
        expected, found = self.launched.forward(segments), self.fused.forward(segments)
        close(found.logits, expected.logits)
        assert found.features is not None
        assert expected.features is not None
        close(found.features, expected.features)
        fused, launched = self.fused._arena.memory, self.launched._arena.memory
        torch.testing.assert_close(fused, launched, rtol=1e-5, atol=1e-4, equal_nan=True)


def close(actual: Tensor, expected: Tensor) -> None:
    assert actual.isfinite().all()
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=2e-4)


@pytest.fixture(params=FUSED, scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("model"), family_configs()[request.param], is_varied=True)


@pytest.fixture(scope="module")
def rounded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with numbers that bfloat16 has, so that layers are kept in half the bytes, and with wider layers."""
    rounded = tmp_path_factory.mktemp("rounded")
    config = AutoConfig.from_pretrained(folder, intermediate_size=1536, initializer_range=0.1)
    tiny_model_folder(rounded, config, is_varied=True)
    tensors = {name: tensor.bfloat16().float() for name, tensor in load_file(rounded / WEIGHTS).items()}
    save_file(tensors, rounded / WEIGHTS, metadata={"format": "pt"})
    return rounded


@pytest.fixture(params=["full", "rounded"], scope="module")
def pair(request: pytest.FixtureRequest, folder: Path, rounded: Path) -> Pair:
    where = folder if request.param == "full" else rounded
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_module, "can_fuse", lambda decoder: False)
        launched = load(where)
    fused = load(where)
    assert fused._fused is not None
    return Pair(fused, launched)


@pytest.mark.parametrize("attention", ["kernel", "torch"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=growing())
def test_any_mix_of_spans_computes_what_it_does_launched(
    pair: Pair, attention: str, story: list[list[Segment]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "KERNEL_CHANNELS", 2**30 if attention == "kernel" else -1)
    pair.poison()
    for segments in story:
        pair.step(segments)


@pytest.mark.skipif(torch.backends.quantized.engine not in FP16_ENGINES, reason="layers are kept in full")
def test_a_row_is_the_same_alone_and_in_any_company(rounded: Path) -> None:
    model = load(rounded)
    prompts = [tuple(range(20 + index, 30 + index)) for index in range(4)]
    for index, prompt in enumerate(prompts):
        model.forward([Segment(index * EXTENT, 0, prompt, 1)])
    together = [Segment(index * EXTENT, 10, (40 + index,) * 3, 3) for index in range(4)]
    expected = model.forward(together).logits.split(3)
    for index, segment in enumerate(together):
        assert torch.equal(model.forward([segment]).logits, expected[index])
        for row in range(3):
            alone = Segment(index * EXTENT, 10 + row, segment.token_ids[row : row + 1], 1)
            assert torch.equal(model.forward([alone]).logits[0], expected[index][row])


def calls(monkeypatch: pytest.MonkeyPatch, name: str) -> Mock:
    kernel = Mock(wraps=getattr(kernels, name))
    monkeypatch.setattr(kernels, name, kernel)
    return kernel


def test_long_chunks_are_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, norm = load(tiny_model_folder(tmp_path)), calls(monkeypatch, "add_and_norm")
    model.forward([Segment(0, 0, (9,) * (steps.MOST_ROWS + 1), 1)])
    assert norm.call_count == 0
    model.forward([Segment(0, 0, (9,) * steps.MOST_ROWS, 1)])
    assert norm.call_count == 2 * 4


def test_much_to_see_is_left_to_the_products_of_all_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, attend = load(tiny_model_folder(tmp_path)), calls(monkeypatch, "attend")
    monkeypatch.setattr(steps, "KERNEL_CHANNELS", 40 * 48)
    for segments, expected in (
        ([Segment(0, 39, (9,), 1)], 4),
        ([Segment(0, 40, (9,), 1)], 4),
        ([Segment(0, 100, (9, 9), 1), Segment(120, 0, (9,), 1)], 8),
        ([Segment(0, 40, (9, 9, 9), 1), Segment(120, 0, (9,), 1)], 12),
        ([Segment(0, 80, (9, 9, 9), 1), Segment(120, 0, (9,), 1)], 12),
    ):
        model.forward(segments)
        assert attend.call_count == expected


@pytest.mark.parametrize("family", sorted({*family_configs()} - {*FUSED}))
def test_families_that_compute_otherwise_are_launched(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norm = calls(monkeypatch, "add_and_norm")
    load(tiny_model_folder(tmp_path, family_configs()[family])).forward([Segment(0, 0, (9,), 1)])
    assert norm.call_count == 0


def test_a_model_without_numbers_gives_none(tmp_path: Path) -> None:
    model = load(tiny_model_folder(tmp_path))
    assert isinstance(model.embedding, Tensor)
    with torch.inference_mode():
        model.embedding[9] = torch.nan
    assert model.forward([Segment(0, 0, (9,), 1)]).logits.isnan().all()


KERNEL = """
from replicas.engine.fused.compiling import compiled

@compiled("int64(int64)")
def double(value):
    return 2 * value

print(double(21))
"""


@pytest.mark.parametrize("breaks", ["nothing", "an index", "the folder"])
def test_kernels_compile_whatever_has_become_of_those_kept(breaks: str, tmp_path: Path) -> None:
    source, kept = tmp_path / "kernel.py", tmp_path / "kept"
    source.write_text(KERNEL)
    command, environment = [sys.executable, str(source)], {**os.environ, "NUMBA_CACHE_DIR": str(kept)}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    [index] = kept.rglob("*.nbi")
    if breaks == "an index":
        index.write_bytes(b"")
    if breaks == "the folder":
        shutil.rmtree(kept)
        kept.write_text("a file stands where the folder should be")
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert found.stdout == "42\n"

"""Prompts' chunks through the flash path, which torch computes with a mask where there is no GPU."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from replicas.engine import attention
from replicas.engine import model as model_module
from replicas.engine.flash import causal_attention, has_flash
from replicas.engine.model import DecoderModel, load_model
from replicas.engine.packing import Segment
from tests.tiny_models import family_configs, tiny_model_folder

PROMPT = tuple(20 + 3 * index % 60 for index in range(60))


@pytest.mark.parametrize(("rows", "keys"), [(20, 20), (20, 33), (1, 7)])
def test_rows_see_the_keys_up_to_their_own(rows: int, keys: int) -> None:
    generator = torch.Generator().manual_seed(3)
    queries, cached = (torch.randn(2, heads, 40, 8, generator=generator)[0] for heads in (6, 2))
    found = causal_attention(queries[:, :rows], cached[:, :keys], cached[:, :keys], 0.3)
    for head in range(6):
        for row in range(rows):
            seen = cached[head // 3, : keys - rows + row + 1]
            expected = (seen @ queries[head, row] * 0.3).softmax(0) @ seen
            torch.testing.assert_close(found[head, row], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(("family", "calls"), [("llama", 8), ("mistral", 4), ("gemma3", 6)])
def test_chunks_compute_what_they_do_with_a_mask(
    family: str, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = family_configs()[family]
    if family != "llama":
        config.sliding_window = 25  # wide enough for the first chunk, not for the second
    folder = tiny_model_folder(tmp_path, config)
    plain = load(folder)
    monkeypatch.setattr(model_module, "has_flash", lambda config, dtype, device: True)
    flash = load(folder)
    kernel = Mock(wraps=causal_attention)
    monkeypatch.setattr(attention, "causal_attention", kernel)
    chunks = [[Segment(0, 0, PROMPT[:22], 22), Segment(90, 0, PROMPT[:3], 1)], [Segment(0, 22, PROMPT[22:], 38)]]
    for segments in chunks:
        expected, found = plain.forward(segments).logits, flash.forward(segments).logits
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    assert kernel.call_count == calls


def load(folder: Path) -> DecoderModel:
    return load_model(folder, dtype="float32", device="cpu", kv_tokens=100)


def test_a_cpu_has_no_flash_kernel(tmp_path: Path) -> None:
    assert not has_flash(load(tiny_model_folder(tmp_path)).config, torch.bfloat16, torch.device("cpu"))

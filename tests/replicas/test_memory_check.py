from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fleet.errors import ConfigError
from replicas import memory_check
from replicas.engine.decoder_config import load_config
from replicas.engine.footprint import Needed
from replicas.memory_check import GIB, check_memory, stored_footprint
from tests.tiny_models import tiny_model_folder

CPU = torch.device("cpu")


def test_too_little_memory_is_said_before_loading(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path / "model")
    check_memory(folder, dtype="float32", kv_tokens=1000, device=CPU)
    with pytest.raises(ConfigError, match=r"needs .* GiB on cpu .* GiB available; lower kv_cache_gib"):
        check_memory(folder, dtype="float32", kv_tokens=10**12, device=CPU)


def test_the_estimate_counts_only_the_layers_that_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_model_folder(tmp_path / "model")
    weights = sum(tensor.numel() * 4 for tensor in load_tensors(folder).values())
    head = 2 * 4 * load_tensors(folder)["lm_head.weight"].numel()
    monkeypatch.setattr(memory_check, "WORKING_BYTES", 0)
    monkeypatch.setattr(memory_check, "_available_bytes", lambda device: weights + head - 1)
    check_memory(folder, dtype="float32", kv_tokens=1, device=CPU, layers=1)
    with pytest.raises(ConfigError):
        check_memory(folder, dtype="float32", kv_tokens=1, device=CPU)


def test_a_draft_that_stores_no_embedding_needs_that_of_the_target_and_its_own_short_head(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path / "draft")
    tensors = load_tensors(folder)
    embedding, head = tensors.pop("model.embed_tokens.weight"), tensors.pop("lm_head.weight")
    save_file({**tensors, "d2t": torch.zeros(7, dtype=torch.int64)}, folder / "model.safetensors")
    footprint = stored_footprint(folder, load_config(folder), "float32")
    own = sum(tensor.numel() for tensor in tensors.values())
    assert footprint.parameters == own + embedding.numel() + 7 * head.shape[1]


def test_what_is_needed_beside_the_model_is_counted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_model_folder(tmp_path / "model")
    monkeypatch.setattr(memory_check, "_available_bytes", lambda device: GIB)
    check_memory(folder, dtype="float32", kv_tokens=1, device=CPU)
    beside = {"CUDA graphs": Needed(GIB // 2), "head": Needed(GIB // 4)}
    with pytest.raises(ConfigError, match=r"needs 1\.\d\d GiB .*, CUDA graphs 0\.50, head 0\.25\)"):
        check_memory(folder, dtype="float32", kv_tokens=1, device=CPU, beside=beside)


def load_tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")

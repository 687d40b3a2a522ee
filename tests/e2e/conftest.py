"""One fleet in fp32 for all end-to-end tests: every kind of path, healthy and broken on purpose."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fleet.config import ModelConfig
from replicas.model_store import resolve_model
from tests.e2e.harness import MODEL_NAME, Fleet, start_fleet, stop_fleet

TIMEOUT_SECONDS = 900
DRAFT_LAYERS = 6


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.ray)
            item.add_marker(pytest.mark.model)
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


def speculating(method: str, **keys: Any) -> dict[str, Any]:
    return {"method": method, "num_speculative_tokens": 4} | keys


def fleet_config(folder: Path, port: int, draft: Path) -> dict[str, Any]:
    early_exit = speculating("draft_model", layers=4, draft_threads=1, adaptive=False)
    patient = early_exit | {"deadline_floor_ms": 1500}
    return {
        "model": {"model": MODEL_NAME, "dtype": "float32"},
        "engine": {"max_num_seqs": 32, "kv_cache_tokens": 24576, "threads": 1},
        "paths": {
            "baseline": {"replicas": 2},
            "layers": {"speculative": speculating("draft_model", layers=10, draft_threads=1, adaptive=False)},
            "draft": {"speculative": speculating("draft_model", model=str(draft), draft_threads=1, adaptive=False)},
            "ngram": {"speculative": speculating("ngram", adaptive=False)},
            "slow": {"speculative": patient, "drill": {"draft_delay_ms": 600}},
            "useless": {"speculative": early_exit, "drill": {"useless_draft": True}},
            "oom": {"speculative": speculating("ngram"), "drill": {"out_of_memory_after_requests": 8}},
        },
        "stable": "baseline",
        "controller": {"journal": str(folder / "journal.sqlite3")},
        "router": {"replicas": 1, "report_interval_s": 0.2},
        "port": port,
    }


def make_draft(folder: Path, target: Path) -> Path:
    """A separate draft model with the target's tokenizer: its first layers, stored as a model of its own."""
    folder.mkdir()
    for file in target.iterdir():
        if file.suffix in (".json", ".jinja", ".txt", ".model") and "index" not in file.name:
            (folder / file.name).write_bytes(file.read_bytes())
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(
        config.replace('"num_hidden_layers": 30', f'"num_hidden_layers": {DRAFT_LAYERS}')
    )
    weights: dict[str, torch.Tensor] = {}
    for shard in target.glob("*.safetensors"):
        weights |= load_file(shard)
    kept = {name: value for name, value in weights.items() if _layer_of(name) < DRAFT_LAYERS}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _layer_of(name: str) -> int:
    parts = name.split(".")
    return int(parts[parts.index("layers") + 1]) if "layers" in parts else -1


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    target = resolve_model(ModelConfig(model=MODEL_NAME, dtype="float32"), lambda line: None)
    draft = make_draft(folder / "draft", target)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    fleet = start_fleet(folder, fleet_config(folder, port, draft))
    try:
        yield fleet
    finally:
        stop_fleet(fleet)

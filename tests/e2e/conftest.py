"""Two fleets for the end-to-end tests: the real model for exact text, and a shallow cut of it for whole rollouts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.fleet_state import read_state
from deploy.processes import members
from fleet.config import ModelConfig
from replicas.model_store import resolve_model
from tests.e2e.cut import cut_layers
from tests.e2e.harness import MODEL_NAME, Fleet, start_fleet, stop_fleet

TIMEOUT_SECONDS = 900
SHALLOW_LAYERS = 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.ray)
            item.add_marker(pytest.mark.model)
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


def speculating(method: str, **keys: Any) -> dict[str, Any]:
    threads = {"draft_threads": 1} if method == "draft_model" else {}
    return {"method": method, "num_speculative_tokens": 4, "adaptive": False} | threads | keys


def common(folder: Path, model: str) -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    return {
        "model": {"model": model, "dtype": "float32", "served_name": MODEL_NAME},
        "engine": {"max_num_seqs": 16, "kv_cache_tokens": 8192, "threads": 1},
        "stable": "baseline",
        "controller": {"journal": str(folder / "journal.sqlite3")},
        "port": port,
    }


@pytest.fixture(scope="session")
def target() -> Path:
    return resolve_model(ModelConfig(model=MODEL_NAME, dtype="float32"), lambda line: None)


@pytest.fixture(scope="module")
def real_fleet(tmp_path_factory: pytest.TempPathFactory, target: Path) -> Iterator[Fleet]:
    """The whole model, on the baseline and behind the draft model that is shipped for it."""
    folder = tmp_path_factory.mktemp("real")
    draft = speculating("draft_model", model=f"{MODEL_NAME}-draft", deadline_floor_ms=1500)
    paths = {"baseline": {}, "draft": {"speculative": draft}}
    fleet = start_fleet(folder, common(folder, str(target)) | {"paths": paths})
    try:
        yield fleet
    finally:
        stop_fleet(fleet)


@pytest.fixture(scope="session")
def shallow_fleet(tmp_path_factory: pytest.TempPathFactory, target: Path) -> Iterator[Fleet]:
    """The model's first layers: quick enough to roll out, break and kill on a small machine."""
    folder = tmp_path_factory.mktemp("shallow")
    model = cut_layers(target, folder / "model", SHALLOW_LAYERS)
    early_exit = speculating("draft_model", layers=1)
    paths = {
        "baseline": {"replicas": 2},
        "layers": {"speculative": speculating("draft_model", layers=2)},
        "slow": {"speculative": early_exit | {"deadline_floor_ms": 1500}, "drill": {"draft_delay_ms": 400}},
        "useless": {"speculative": speculating("ngram", prompt_lookup_min=1), "drill": {"useless_draft": True}},
        "oom": {"speculative": speculating("ngram"), "drill": {"out_of_memory_after_requests": 8}},
    }
    fleet = start_fleet(folder, common(folder, str(model)) | {"paths": paths})
    try:
        yield fleet
    finally:
        stop_without_a_trace(fleet)


def stop_without_a_trace(fleet: Fleet) -> None:
    """`fleet down`; fails where a process, a temporary folder or the port is left behind."""
    state = read_state(fleet.folder / "state")
    assert state is not None
    assert members(state.instance)
    stop_fleet(fleet)
    assert members(state.instance) == []
    assert not Path(state.ray_folder).exists()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", fleet.port))

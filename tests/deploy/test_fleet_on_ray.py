"""A whole fleet of a tiny random model on Ray, started, used, hurt and stopped the way a user does it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.fleet_state import read_state
from deploy.processes import members
from tests.e2e.harness import Fleet, kill, start_fleet, stop_fleet, wait_until
from tests.tiny_models import tiny_model_folder

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
PATHS = ("baseline", "layers", "ngram")
LONG = 150


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    speculating = {"num_speculative_tokens": 3, "adaptive": False}
    config = {
        "model": {"model": str(tiny_model_folder(folder / "model")), "dtype": "float32", "served_name": "tiny"},
        "engine": {"max_num_seqs": 8, "kv_cache_tokens": 4096, "threads": 1},
        "paths": {
            "baseline": {},
            "layers": {"speculative": {"method": "draft_model", "layers": 2, "draft_threads": 1} | speculating},
            "ngram": {"speculative": {"method": "ngram"} | speculating},
        },
        "port": free_port(),
    }
    fleet = start_fleet(folder, config)
    yield fleet
    stop_fleet(fleet)


def complete(fleet: Fleet, path: str, **options: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": "There was a river", "max_tokens": 24, "ignore_eos": True, "seed": 5} | options
    answer = httpx.post(f"{fleet.url}/v1/completions", json=body, headers={"x-fleet-path": path}, timeout=60)
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_path_gives_the_same_text(fleet: Fleet, temperature: float) -> None:
    texts = {complete(fleet, path, temperature=temperature)["choices"][0]["text"] for path in PATHS}
    assert len(texts) == 1


def test_status_shows_every_path_ready_and_the_draft_healthy(fleet: Fleet) -> None:
    wait_until(lambda: fleet.path("layers")["draft"] == "healthy", seconds=60, what="the draft joins its target")
    shown = fleet.run("status", "-o", "json")
    paths = {path["path"]: path for path in json.loads(shown.stdout)["paths"]}
    assert {name: path["replicas_ready"] for name, path in paths.items()} == dict.fromkeys(PATHS, 1)
    assert paths["layers"]["replicas"][0]["draft_pid"] not in (None, paths["layers"]["replicas"][0]["pid"])
    assert paths["baseline"]["draft"] == "none"
    assert paths["ngram"]["replicas"][0]["draft_pid"] is None


def test_a_killed_draft_changes_no_text_and_comes_back(fleet: Fleet) -> None:
    wait_until(lambda: fleet.path("layers")["draft"] == "healthy", seconds=60, what="the draft is there")
    expected = complete(fleet, "baseline", max_tokens=LONG)["choices"][0]["text"]
    before = fleet.path("layers")["replicas"][0]
    kill(before["draft_pid"])
    assert complete(fleet, "layers", max_tokens=LONG)["choices"][0]["text"] == expected
    wait_until(
        lambda: fleet.path("layers")["replicas"][0]["draft_pid"] not in (None, before["draft_pid"]),
        seconds=60,
        what="a new draft process",
    )
    wait_until(lambda: fleet.path("layers")["draft"] == "healthy", seconds=60, what="the new draft joins")
    assert fleet.path("layers")["replicas"][0]["pid"] == before["pid"]


def test_a_client_that_leaves_is_cancelled_down_to_the_engine(fleet: Fleet) -> None:
    def cancelled() -> float:
        lines = httpx.get(f"{fleet.url}/metrics").text.splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("fleet_requests_total{") and 'outcome="cancelled"' in line
        )

    before = cancelled()
    body = {"model": "tiny", "prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True, "n": 8}
    headers = {"x-fleet-path": "baseline"}
    with httpx.stream("POST", f"{fleet.url}/v1/completions", json=body, headers=headers, timeout=60) as stream:
        next(stream.iter_lines())
    wait_until(lambda: cancelled() == before + 1, seconds=10, what="the request counts as cancelled")
    wait_until(lambda: fleet.path("baseline")["kv_used_tokens"] == 0, seconds=10, what="the engine is empty")


def test_the_admin_api_wants_its_token(fleet: Fleet) -> None:
    assert httpx.get(f"{fleet.url}/admin/status").status_code == 401


def test_one_scrape_carries_every_path(fleet: Fleet) -> None:
    complete(fleet, "ngram")
    wait_until(
        lambda: all(f'path="{path}"' in httpx.get(f"{fleet.url}/metrics").text for path in PATHS),
        seconds=10,
        what="all paths in /metrics",
    )


def test_a_second_fleet_in_the_same_place_is_refused(fleet: Fleet) -> None:
    done = fleet.run("up", "-f", str(fleet.folder / "fleet.yaml"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: a local fleet is already running")


def test_a_rollout_is_started_shown_and_aborted_with_its_exit_code(fleet: Fleet) -> None:
    plan = fleet.plan(
        "plan",
        {
            "stable": "baseline",
            "canary": "layers",
            "steps": [{"weight": 50, "bake": "10m"}, {"weight": 100}],
            "window": "10s",
            "guardrails": {"oom": {"max": 0}},
        },
    )
    assert fleet.run("canary", "lint", "-f", str(plan)).returncode == 0
    started = fleet.run("canary", "start", "-f", str(plan))
    assert started.returncode == 0, started.stderr
    wait_until(
        lambda: fleet.status()["rollout"]["weight_set"] == 50,
        seconds=30,
        what="the first step's weight",
    )
    assert fleet.run("canary", "abort", "--reason", "test").returncode == 0
    assert fleet.run("canary", "status", "-w", "--timeout", "20").returncode == 3
    assert "test" in fleet.run("canary", "history").stdout


def test_down_leaves_no_process_and_no_temporary_folder(fleet: Fleet) -> None:
    state = read_state(fleet.folder / "state")
    assert state is not None
    assert members(state.instance)
    stop_fleet(fleet)
    assert members(state.instance) == []
    assert not Path(state.ray_folder).exists()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", fleet.port))

"""A fleet used and looked at the way a user does it: paths, a client that leaves, a rollout."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.e2e.harness import MODEL_NAME, Fleet, wait_until

PATHS = ("baseline", "layers", "useless")
"""One without a proposer, one with a draft worker, one with a proposer of its own."""


@pytest.fixture(scope="module")
def fleet(shallow_fleet: Fleet) -> Fleet:
    return shallow_fleet


def complete(fleet: Fleet, path: str, **options: Any) -> dict[str, Any]:
    body = {
        "model": MODEL_NAME,
        "prompt": "There was a river",
        "max_tokens": 24,
        "ignore_eos": True,
        "seed": 5,
    } | options
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
    ready = {name: path["replicas_ready"] for name, path in paths.items()}
    assert ready == {"baseline": 2, "layers": 1, "slow": 1, "useless": 1, "oom": 1}
    assert paths["layers"]["replicas"][0]["draft_pid"] not in (None, paths["layers"]["replicas"][0]["pid"])
    assert paths["baseline"]["draft"] == "none"
    assert paths["useless"]["replicas"][0]["draft_pid"] is None
    parts = paths["layers"]["fingerprint"]
    assert parts["draft.hardware.cpu"] == parts["hardware.cpu"], "told by the draft, which runs on the same machine"
    assert "draft.hardware.cpu" not in paths["baseline"]["fingerprint"]


def cancelled(fleet: Fleet) -> float:
    lines = httpx.get(f"{fleet.url}/metrics").text.splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("fleet_requests_total{") and 'outcome="cancelled"' in line
    )


@pytest.mark.parametrize("path", ["baseline", "layers"])
@pytest.mark.parametrize("padding", [0, 40_000], ids=["short", "longer-than-a-buffer"])
@pytest.mark.parametrize("is_streamed", [True, False], ids=["streamed", "whole"])
def test_a_client_that_leaves_is_cancelled_down_to_the_engine(
    fleet: Fleet, path: str, padding: int, is_streamed: bool
) -> None:
    before = cancelled(fleet)
    body = {"model": MODEL_NAME, "prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": is_streamed, "n": 8}
    options: dict[str, Any] = {"json": body | {"padding": "x" * padding}, "headers": {"x-fleet-path": path}}
    if is_streamed:
        with httpx.stream("POST", f"{fleet.url}/v1/completions", **options, timeout=60) as stream:
            next(stream.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{fleet.url}/v1/completions", **options, timeout=httpx.Timeout(60, read=0.2))
    wait_until(lambda: cancelled(fleet) == before + 1, seconds=10, what="the request counts as cancelled")
    wait_until(lambda: fleet.path(path)["kv_used_tokens"] == 0, seconds=10, what="the engine is empty")


def test_no_header_bytes_reach_serve_and_every_answer_has_one_request_id(fleet: Fleet) -> None:
    body = {"model": MODEL_NAME, "prompt": "a", "max_tokens": 1}
    hostile = {
        b"x-request-id": b"\xff\xfe",
        b"x-session-id": b"\xff",
        b"serve_multiplexed_model_id": b"\xff",
        b"x-request-timeout-seconds": b"inf",
    }
    for name, value in hostile.items():
        answer = httpx.post(f"{fleet.url}/v1/completions", json=body, headers=[(name, value)], timeout=60)
        assert answer.status_code == 200, (name, answer.text)
        (request_id,) = answer.headers.get_list("x-request-id")
        assert answer.json()["id"] == f"cmpl-{request_id}"
    mine = httpx.post(f"{fleet.url}/v1/completions", json=body, headers={"x-request-id": "mine"}, timeout=60)
    assert mine.headers.get_list("x-request-id") == ["mine"]
    hasty = httpx.post(
        f"{fleet.url}/v1/completions", json=body, headers={"x-request-timeout-seconds": "1e-9"}, timeout=60
    )
    assert hasty.status_code == 200


def test_the_admin_api_wants_its_token(fleet: Fleet) -> None:
    assert httpx.get(f"{fleet.url}/admin/status").status_code == 401


def test_one_scrape_carries_every_path(fleet: Fleet) -> None:
    complete(fleet, "useless")
    wait_until(
        lambda: all(f'path="{path}"' in httpx.get(f"{fleet.url}/metrics").text for path in PATHS),
        seconds=10,
        what="all paths in /metrics",
    )


def test_a_scrape_tells_what_happened_on_the_way_to_a_draft(fleet: Fleet) -> None:
    complete(fleet, "layers")
    waited = 'fleet_draft_link_total{engine="0",event="rounds",model_name="SmolLM2-135M-Instruct",path="layers"}'
    wait_until(
        lambda: waited in httpx.get(f"{fleet.url}/metrics").text,
        seconds=20,
        what="rounds of the draft in /metrics",
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

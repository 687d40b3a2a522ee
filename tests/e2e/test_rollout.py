"""A whole rollout on real requests: 5 → 50 → 100 → promoted, with the share that was set and nobody moved back."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict

import pytest
from scipy.stats import binomtest

from deploy.bench.load import drive
from deploy.bench.load_plan import LoadPlan
from deploy.bench.load_result import RequestRecord
from fleet.traffic import Outcome
from tests.e2e.harness import Fleet, prompts

PLAN = {
    "stable": "baseline",
    "canary": "layers",
    "steps": [
        {"weight": 5, "bake": "8s"},
        {"weight": 50, "bake": "8s"},
        {"weight": 100, "bake": "4s"},
    ],
    "window": "2s",
    "min_requests": 3,
    "min_windows": 3,
    "last_step": "no_harm",
    "guardrails": {"itl_p95": {"max_increase": "200%"}, "error_rate": {"max_increase": "10pp"}},
}


@pytest.fixture(scope="module")
def fleet(shallow_fleet: Fleet) -> Fleet:
    return shallow_fleet


async def test_a_good_canary_is_promoted_step_by_step(fleet: Fleet) -> None:
    assert fleet.run("canary", "lint", "-f", str(fleet.plan("good", PLAN))).returncode == 0
    started = fleet.run("canary", "start", "-f", str(fleet.plan("good", PLAN)))
    assert started.returncode == 0, started.stderr
    second = fleet.run("canary", "start", "-f", str(fleet.plan("good", PLAN)))
    assert second.returncode == 2
    assert second.stderr.strip()

    records: list[RequestRecord] = []
    load = LoadPlan(
        url=fleet.url,
        prompts=tuple(prompts(12)),
        concurrency=6,
        duration_seconds=500,
        users=5000,
        max_tokens=8,
        temperature=0.0,
    )
    driver = asyncio.create_task(drive(load, records.append))
    waited = await asyncio.to_thread(fleet.run, "canary", "status", "-w", "--timeout", "480", timeout=500)
    driver.cancel()
    await asyncio.gather(driver, return_exceptions=True)
    assert waited.returncode == 0, waited.stdout + waited.stderr
    assert {record.outcome for record in records} == {Outcome.DONE}

    status = fleet.status()
    assert status["rollout"]["state"] == "promoted"
    assert status["stable"] == "layers"

    history = json.loads(fleet.run("canary", "history", "-o", "json").stdout)
    weights = [event["weight"] for event in history]
    assert set(weights) >= {
        5,
        50,
        100,
    }


async def test_a_user_keeps_the_arm_and_the_share_is_what_was_set(fleet: Fleet) -> None:
    stable = fleet.status()["stable"]
    canary = "baseline" if stable == "layers" else "layers"
    plan = PLAN | {"stable": stable, "canary": canary, "steps": [{"weight": 20, "bake": "10m"}, {"weight": 100}]}
    started = fleet.run("canary", "start", "-f", str(fleet.plan("sticky", plan)))
    assert started.returncode == 0, started.stderr
    users = 80
    served: dict[str, list[str]] = defaultdict(list)
    shares: dict[int, int] = {}
    for weight in (20, 50):
        assert fleet.run("canary", "set-weight", str(weight)).returncode == 0
        await asyncio.sleep(1.5)
        load = LoadPlan(
            url=fleet.url,
            prompts=tuple(prompts(6)),
            concurrency=6,
            requests=2 * users,
            users=users,
            max_tokens=2,
        )
        result = await drive(load)
        arms: dict[str, set[str]] = defaultdict(set)
        for record in result.records:
            arms[record.user].add(record.path)
        assert all(len(paths) == 1 for paths in arms.values())
        for user, paths in arms.items():
            served[user] += paths
        shares[weight] = sum(paths == {canary} for paths in arms.values())
        assert binomtest(shares[weight], len(arms), weight / 100).pvalue > 1e-4
    assert shares[20] < shares[50]
    assert all(not (paths[0] == canary and paths[-1] != canary) for paths in served.values())
    aborted = fleet.run("canary", "abort", "--reason", "the test is over")
    assert aborted.returncode == 0, aborted.stderr
    assert fleet.run("canary", "status").returncode == 3

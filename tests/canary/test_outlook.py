from __future__ import annotations

from pathlib import Path

import pytest

from canary.outlook import outlook
from canary.plan import read_plan
from fleet.config import load_yaml
from tests.canary.world import Behaviour, World, plan

STEPS = [{"weight": 5, "bake": "40s"}, {"weight": 50, "bake": "10s"}, {"weight": 100}]


def steps(rate=None, **changes):
    return outlook(read_plan(plan(**{"steps": STEPS, "min_requests": 10} | changes)), rate)["steps"]


def test_a_step_asks_for_so_many_requests_that_the_canary_gets_its_own():
    assert [(step["canary_requests"], step["requests"]) for step in steps()] == [(10, 200), (10, 20), (0, 0)]


def test_a_step_lasts_its_bake_or_as_long_as_its_windows_take():
    first, second, last = steps(window="2s", min_windows=5, warmup_windows=1)
    assert (first["seconds"], second["seconds"], last["seconds"]) == (40.0, 14.0, 0.0)


def test_every_step_that_bakes_asks_for_its_windows_the_last_one_too():
    full = [*STEPS[:2], {"weight": 100, "bake": "2s"}]
    assert steps(steps=full)[-1]["seconds"] == 14.0
    assert steps(steps=full, holdback=2)[-1]["seconds"] == 14.0
    assert steps(steps=full, holdback=2)[-1]["weight"] == 98.0


@pytest.mark.parametrize(("rate", "expected"), [(None, [None, None, 0.0]), (0.0, [None, None, 0.0])])
def test_without_a_rate_no_time_is_expected(rate, expected):
    assert [step["expected_seconds"] for step in steps(rate)] == expected


def test_a_slow_rate_is_what_a_step_waits_for():
    assert [step["expected_seconds"] for step in steps(2.0)] == [100.0, 14.0, 0.0]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_shipped_plan_is_promoted_in_five_minutes_where_a_request_takes_two_seconds(tmp_path, seed):
    shipped = dict(load_yaml(Path(__file__).parents[2] / "deploy" / "manifests" / "plan.yaml"))
    alike = {"baseline": Behaviour(), "speculative": Behaviour(acceptance=0.5)}
    world = World(tmp_path, seed=seed, requests_per_second=0.5, routers=1, behaviours=alike)
    world.run(10)
    assert not [line for line in world.command("start", plan=shipped)["warnings"] if line.startswith("step")]
    assert world.run_until("promoted", "rolled_back") < 300
    assert world.rollout["state"] == "promoted"
    world.controller.close()


def test_a_real_rollout_takes_about_as_long_as_was_expected(tmp_path):
    world = World(tmp_path, seed=3, requests_per_second=4.0)
    world.run(20)
    answer = world.command("start", plan=plan(steps=STEPS, min_requests=10, last_step="no_harm"))
    expected = sum(step["expected_seconds"] for step in answer["outlook"]["steps"])
    assert world.run_until("promoted") == pytest.approx(expected, rel=0.6)
    world.controller.close()

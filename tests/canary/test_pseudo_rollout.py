"""Equal canaries, walked through a plan and watched long after it."""

from __future__ import annotations

import pytest

from canary.plan import Plan, read_plan
from canary.pseudo_rollout import Trip, walk
from canary.windows import Window
from deploy.bench.judge_runs import Setting
from deploy.bench.judge_traffic import Harm, window_of

WATCHED = 300


def planned(steps=({"weight": 100},), **guardrails) -> Plan:
    paths = {"stable": "baseline", "canary": "speculative"}
    return read_plan(paths | {"steps": steps, "holdback": 5, "guardrails": guardrails})


def watched(plan: Plan, harm: Harm, seed: int, windows: int = WATCHED) -> Trip | None:
    traffic = Setting(4.0, harm=harm).traffic([seed])

    def window_at(_: int, weight: float) -> Window:
        return window_of([traffic.slice(weight) for _ in range(3)], weight)

    return walk(plan, window_at, watched=windows)


@pytest.mark.parametrize("seed", [1, 2])
def test_an_equal_canary_stays_promoted_long_after_the_time_that_was_planned(seed):
    assert watched(planned(itl_p95={"max_increase": "10%"}), Harm(), seed) is None


def test_what_goes_wrong_after_promotion_is_still_found():
    assert watched(planned(itl_p95={"max_increase": "10%"}), Harm(slowdown=2.0), 1) is not None
    trip = watched(planned(error_rate={"max_increase": "0.5pp"}), Harm(error_rate=0.2), 1)
    assert trip is not None
    assert trip.guardrail == "error_rate"


def test_windows_are_asked_for_at_the_weights_of_the_plan_less_the_holdback():
    steps = [{"weight": 50, "bake": "60s"}, {"weight": 100, "bake": "30s"}]
    weights: list[float] = []

    def window_at(number: int, weight: float) -> Window:
        assert number == len(weights)
        weights.append(weight)
        return window_of([Setting(2.0).traffic([1]).slice(weight)], weight)

    walk(planned(steps), window_at, watched=2)
    assert weights == [50, 50, 95, 95, 95]

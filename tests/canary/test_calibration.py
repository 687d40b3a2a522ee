from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from canary import calibration
from canary.calibration import Arm, Fitness, calibrate, rate_bounds, twins, untried
from canary.events import SplitApplied, WindowClosed
from canary.plan import read_plan
from canary.record import Recorded, steady_windows
from canary.windows import ArmUsage, Window
from fleet.errors import ConfigError
from fleet.traffic import PathTally
from tests.canary.world import plan

PLAN = read_plan(
    plan(
        steps=[{"weight": 25, "bake": "60s"}, {"weight": 50, "bake": "60s"}, {"weight": 100}],
        guardrails={"itl_p95": {"max_increase": "5%"}, "error_rate": {"max_increase": "1pp"}},
        alpha=0.2,
    )
)


def sample(source: np.random.Generator, requests: int, level: float) -> PathTally:
    tally = PathTally(assigned=requests, outcomes={"done": requests})
    for _ in range(requests):
        effect = level + 0.2 * float(source.standard_normal())
        for noise in source.standard_normal(4):
            tally.itl.add(0.03 * float(np.exp(effect + 0.3 * noise)))
    return tally


def recorded(count: int, *, control_is_slower: float = 0.0, seed: int = 1) -> list[Window]:
    """Windows of stable with a control in it, at a weight of 25 %."""
    source = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        shared = 0.1 * float(source.standard_normal())
        control = sample(source, 8, shared + control_is_slower)
        stable = sample(source, 16, shared)
        stable.merge(control)
        found.append(Window(2.0, 25.0, stable, sample(source, 8, 5.0), control=control))
    return found


def test_the_control_is_compared_with_the_rest_of_stable_and_not_with_itself():
    window = recorded(1)[0]
    twin = twins([window], Arm.CONTROL)[0]
    assert (twin.canary.assigned, twin.stable.assigned) == (8, 16)
    assert twin.stable.itl.total + twin.canary.itl.total == window.stable.itl.total
    assert twin.stable.itl.sum == pytest.approx(window.stable.itl.sum - window.control.itl.sum)
    assert twin.canary_percent == pytest.approx(100 / 3)
    assert twins([window], Arm.CANARY) == [window]
    assert twins([replace(window, control=PathTally())], Arm.CONTROL) == []


def test_traffic_on_which_equal_arms_stay_equal_makes_the_judge_fit():
    found = calibrate(PLAN, twins(recorded(60), Arm.CONTROL), runs=20, seed=3)
    assert found.fitness is Fitness.FIT
    assert found.chosen_seconds == 2.0
    assert found.rates[0].upper <= 0.2
    assert found.lengths == pytest.approx(1.0)
    assert found == calibrate(PLAN, twins(recorded(60), Arm.CONTROL), runs=20, seed=3), "seeded"


def test_arms_that_differ_by_themselves_make_it_unfit_and_the_guardrail_is_named():
    found = calibrate(PLAN, twins(recorded(60, control_is_slower=0.6), Arm.CONTROL), runs=20, seed=3)
    assert found.fitness is Fitness.UNFIT
    assert found.chosen_seconds is None
    assert found.rates[0].by_guardrail.keys() == {"itl_p95"}
    assert found.rates[0].lower > 0.2
    assert [rate.window_seconds for rate in found.rates] == [2.0, 4.0]


def test_few_runs_decide_nothing():
    found = calibrate(PLAN, twins(recorded(30), Arm.CONTROL), runs=8, seed=3)
    assert found.fitness is Fitness.UNDECIDED


def test_a_window_with_which_nothing_could_be_found_is_not_chosen():
    short = PLAN.model_copy(update={"steps": PLAN.steps[:1]})
    with pytest.raises(ConfigError, match=r"hold \d+ judged windows of 8s, and it takes \d+ of the worst ones"):
        calibrate(short, [replace(window, seconds=8.0) for window in recorded(20)], runs=8, seed=3)


def test_a_short_record_is_refused():
    with pytest.raises(ConfigError, match=r"7 recorded windows .* calibrating needs 20: record more traffic"):
        calibrate(PLAN, recorded(7), runs=20, seed=1)


@pytest.mark.parametrize(("hits", "runs"), [(0, 50), (3, 200), (50, 50)])
def test_the_bounds_are_where_so_many_hits_become_unlikely(hits, runs):
    lower, upper = rate_bounds(hits, runs)
    if hits:
        assert binom.sf(hits - 1, runs, lower) == pytest.approx(0.05)
    if hits < runs:
        assert binom.cdf(hits, runs, upper) == pytest.approx(0.05)
    assert 0.0 <= lower <= hits / runs <= upper <= 1.0


def test_windows_that_saw_a_change_of_weight_are_left_out():
    first = recorded(4)
    second = [replace(window, canary_percent=50.0) for window in recorded(4, seed=2)]
    events = [SplitApplied(1.0, 1, 1, 0.1), *(WindowClosed(1.0, window) for window in first + second)]
    record = [Recorded(event, "speculative-1", 1, "baking", 25.0, "") for event in events]
    assert steady_windows(record, skip=1) == [*first[2:], *second[2:]]


def test_guardrails_of_which_the_record_says_nothing_are_named():
    guardrails = {
        "itl_p95": {"max_increase": "5%"},
        "completion_lag": {"max_increase": "10pp"},
        "kv_pressure": {"max_increase": "10pp"},
        "peak_throughput": {"max_decrease": "5%"},
        "acceptance": {"max_decrease": "10%", "reference": 0.6},
    }
    chosen = read_plan(plan(guardrails=guardrails))
    controls = twins(recorded(4), Arm.CONTROL)
    assert untried(chosen, controls) == ("completion_lag", "kv_pressure", "peak_throughput", "acceptance")
    seen = ArmUsage(2, 2, 0, 0, 2.0, 8, 1)
    drafted = PathTally()
    drafted.request_acceptance.add(1.7, 5)
    alike = []
    for window in recorded(4):
        window.canary.merge(drafted)
        alike.append(replace(window, canary_usage=seen, stable_usage=seen))
    assert untried(chosen, twins(alike, Arm.CANARY)) == ("peak_throughput",), "nothing was saturated"


def test_with_a_holdback_the_watch_after_promotion_is_tried_too(monkeypatch):
    seen: list[int] = []
    monkeypatch.setattr(calibration, "walk", lambda *_, watched: seen.append(watched))
    held = PLAN.model_copy(update={"holdback": 10.0})
    for tried in (PLAN, held):
        calibrate(tried, twins(recorded(30), Arm.CONTROL), runs=1, seed=1)
    assert seen[0] == 0
    assert seen[-1] > 0

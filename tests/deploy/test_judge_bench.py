"""A small slice of `make bench-judge`: its traffic is what it says, and its tables say what they should."""

from __future__ import annotations

import math

import numpy as np
import pytest

from canary.pseudo_rollout import Trip
from deploy.bench.judge_edges import EDGES
from deploy.bench.judge_rivals import RankTest, Threshold
from deploy.bench.judge_runs import LIMITS, Outcome, Setting, alone, false_alarms, outcomes, plan_with
from deploy.bench.judge_traffic import Harm, Shocks, histogram_of, window_of
from deploy.bench.judge_winner import BASELINE_STEP, SPECULATIVE_STEP, compare, fate, streams
from fleet.histogram import LogHistogram

SHORT = [{"weight": 50, "bake": "20m"}, {"weight": 100}]


def test_a_histogram_of_many_values_is_the_one_of_adding_each():
    values = np.exp(np.random.default_rng(1).standard_normal(500) * 3.0 - 2.0)
    one_by_one = LogHistogram()
    for value in values:
        one_by_one.add(float(value))
    found = histogram_of(values)
    assert (found.counts, found.total) == (one_by_one.counts, one_by_one.total)
    assert found.sum == pytest.approx(one_by_one.sum)


def test_requests_moments_and_hosts_shake_as_much_as_they_should():
    traffic = Setting(20.0, Shocks(shared=0.3, host=0.2, persistence=0.9)).traffic([1])
    logs = []
    for _ in range(150):
        item = traffic.slice(50.0)
        logs.append([math.log(item.stable_means.mean()), math.log(item.canary_means.mean())])
    stable, canary = np.array(logs).T
    assert np.std(stable) == pytest.approx(math.hypot(0.3, 0.2 / math.sqrt(2)), rel=0.3)
    assert np.corrcoef(stable, canary)[0, 1] > 0.7, "what is shared cancels"
    own = stable - canary
    assert np.corrcoef(own[:-1], own[1:])[0, 1] > 0.5, "a host's shock lasts"


def test_an_equal_canary_is_kept_where_the_rules_of_thumb_take_it_back():
    found = false_alarms(Setting(2.0), plan_with(LIMITS, SHORT), runs=5, seed=11)
    assert found.ours == 0
    assert found.rank_test + found.threshold >= 2


@pytest.mark.parametrize(
    ("guardrail", "harm", "is_peak"),
    [
        ("itl_p95", Harm(slowdown=1.5), False),
        ("error_rate", Harm(error_rate=0.05), False),
        ("acceptance", Harm(acceptance=0.5), False),
        ("peak_throughput", Harm(throughput=0.8), True),
    ],
)
def test_a_worse_canary_is_found_in_minutes_by_the_guardrail_that_is_meant(guardrail, harm, is_peak):
    plan = alone(guardrail, {}, SHORT)
    assert plan.alpha_each == pytest.approx(0.05 / len(LIMITS))
    found = outcomes(Setting(10.0, Shocks(), harm, is_peak), plan, runs=2, seed=5)
    assert [item.trip.guardrail for item in found if item.trip] == [guardrail] * 2
    assert all(item.windows_to_find for item in found)


def test_the_time_to_find_begins_with_the_harm_and_what_was_taken_back_before_is_not_found():
    assert Outcome(Trip("acceptance", 12), 10).windows_to_find == 2
    early = Outcome(Trip("acceptance", 10), 10)
    assert early.is_false
    assert early.windows_to_find is None
    assert Outcome(None, 10).windows_to_find is None
    harm = Harm(acceptance=0.3, acceptance_after=900)
    found = outcomes(Setting(10.0, Shocks(), harm), alone("acceptance", {}, SHORT), runs=1, seed=5)[0]
    assert found.harmless == pytest.approx(900 / (10.0 * 0.5 * 30.0), abs=1)
    assert found.windows_to_find is not None
    assert found.windows_to_find <= 4


def test_the_edges_have_the_effects_that_their_limits_name():
    """By brute force over all values that two long slices bring."""
    worse = next(edge for edge in EDGES if edge.harm.slowdown > 1.0)
    limits = worse.plan.guardrails
    traffic = Setting(400.0, Shocks(shared=0.0), worse.harm, is_peak=True).traffic([2])
    window = window_of([traffic.slice(50.0) for _ in range(4)], 50.0)
    assert limits.itl_p95 is not None
    stable, canary = window.stable.itl.quantile(0.95), window.canary.itl.quantile(0.95)
    assert canary / stable == pytest.approx(1.0 + limits.itl_p95.max_increase, rel=0.021)
    assert worse.harm.slowdown == pytest.approx(1.0 + limits.itl_p95.max_increase)
    assert limits.gap_p99 is not None
    assert window.canary.gap.quantile(0.99) == pytest.approx(limits.gap_p99.max, rel=0.03)
    assert limits.error_rate is not None
    assert worse.harm.error_rate - Harm().error_rate == pytest.approx(limits.error_rate.max_increase)
    assert limits.acceptance is not None
    assert worse.harm.acceptance == pytest.approx(0.7 * (1.0 - limits.acceptance.max_decrease))
    assert limits.peak_throughput is not None
    assert worse.harm.throughput == pytest.approx(1.0 - limits.peak_throughput.max_decrease)


def test_the_rivals_see_a_slowdown_too():
    traffic = Setting(10.0, Shocks(), Harm(slowdown=2.0)).traffic([3])
    threshold, ranked = Threshold(), RankTest()
    alarms = [(threshold.alarms(item), ranked.alarms(item)) for item in (traffic.slice(50.0) for _ in range(40))]
    assert alarms[-1][0]
    assert any(alarm for _, alarm in alarms)


@pytest.mark.slow
def test_a_longer_step_that_pays_is_promoted_and_one_that_does_not_goes_back():
    source = np.random.default_rng(4)
    stable = streams(source, BASELINE_STEP, None)
    for acceptance, state in ((0.75, "promoted"), (0.35, "rolled_back")):
        canary = streams(source, SPECULATIVE_STEP, acceptance)
        assert compare(stable, canary).gap_p95 > 1.4
        assert fate(source, stable, canary).state == state

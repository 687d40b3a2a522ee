"""A small slice of `make bench-judge`: its traffic is what it says, and its tables say what they should."""

from __future__ import annotations

import math

import numpy as np
import pytest

from deploy.bench.judge_rivals import RankTest, Threshold
from deploy.bench.judge_runs import LIMITS, Setting, false_alarms, plan_with, times_to_rollback
from deploy.bench.judge_traffic import Harm, Shocks, histogram_of
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
    ("harm", "is_peak"),
    [
        (Harm(slowdown=1.5), False),
        (Harm(error_rate=0.05), False),
        (Harm(acceptance=0.5), False),
        (Harm(throughput=0.8), True),
    ],
)
def test_a_worse_canary_is_taken_back_in_minutes(harm, is_peak):
    setting = Setting(10.0, Shocks(), harm, is_peak)
    times = times_to_rollback(setting, plan_with(LIMITS, SHORT), runs=2, seed=5)
    assert all(time is not None for time in times)


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

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary.stats.intervals import mean_interval
from canary.stats.running_mean import ClippedMean, RunningMean
from tests.canary.stats.streams import keeps_promise


def fed(values) -> RunningMean:
    found = RunningMean()
    for value in values:
        found = found.update(float(value))
    return found


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=60))
def test_the_bounds_stay_between_0_and_1_and_in_order(values):
    interval = fed(values).interval
    assert interval is not None
    assert 0.0 <= interval[0] <= interval[1] <= 1.0
    assert fed(values).mean == pytest.approx(sum(values) / len(values))


@pytest.mark.parametrize(
    ("draw", "truth"), [(lambda source: source.beta(2, 18, 150), 0.1), (lambda source: source.random(150) < 0.3, 0.3)]
)
def test_the_truth_is_missed_at_any_look_no_more_often_than_promised(draw, truth):
    source, runs, missed = np.random.default_rng(8), 150, 0
    for _ in range(runs):
        found = RunningMean()
        for value in draw(source):
            found = found.update(float(value))
            lower, upper = found.interval or (0.0, 1.0)
            if not lower <= truth <= upper:
                missed += 1
                break
    assert keeps_promise(missed, runs, 0.05)


def test_values_that_vary_little_are_known_better_than_coins():
    values = np.clip(0.5 + 0.02 * np.random.default_rng(2).standard_normal(100), 0.0, 1.0)
    ours, coins = fed(values).interval, mean_interval(float(values.sum()), 100, 0.05)
    assert ours is not None
    assert coins is not None
    assert ours[1] - ours[0] < 0.6 * (coins[1] - coins[0])
    assert ours[0] < 0.5 < ours[1]


def test_beyond_the_clipping_the_interval_is_open():
    far, near = ClippedMean(0.25), ClippedMean(0.25)
    for _ in range(100):
        far, near = far.update(0.8), near.update(-0.05)
    assert far.interval is not None
    assert far.interval[0] is not None
    assert far.interval[0] > 0.2
    assert far.interval[1] is None
    assert near.interval is not None
    assert near.interval == (pytest.approx(-0.05, abs=0.03), pytest.approx(-0.05, abs=0.03))


def test_without_values_nothing_is_known():
    assert (RunningMean().mean, RunningMean().interval) == (None, None)

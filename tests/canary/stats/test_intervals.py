from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaln

from canary.stats.intervals import mean_interval, quantile_interval, samples_to_bound
from fleet.histogram import LogHistogram
from tests.canary.stats.streams import keeps_promise


def histogram(values) -> LogHistogram:
    found = LogHistogram()
    for value in values:
        found.add(float(value))
    return found


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 400), st.floats(0, 1), st.sampled_from([0.01, 0.05, 0.2]))
def test_the_interval_holds_every_rate_that_a_search_by_hand_cannot_exclude(count, share, alpha):
    total = share * count
    found = mean_interval(total, count, alpha)
    assert found is not None
    grid = np.linspace(1e-6, 1 - 1e-6, 4001)
    log_ratio = betaln(0.5 + total, 0.5 + count - total) - betaln(0.5, 0.5)
    log_ratio = log_ratio - total * np.log(grid) - (count - total) * np.log1p(-grid)
    kept = grid[log_ratio < -math.log(alpha)]
    assert found[0] == pytest.approx(kept[0], abs=5e-4)
    assert found[1] == pytest.approx(kept[-1], abs=5e-4)


def test_rates_are_covered_at_every_look_as_often_as_promised():
    source, runs, alpha, rate = np.random.default_rng(8), 100, 0.1, 0.03
    looks = [5, 10, 20, 40, 80, 160, 320, 640, 1280]
    misses = 0
    for _ in range(runs):
        failures = np.cumsum(source.random(looks[-1]) < rate)
        bounds = [mean_interval(float(failures[n - 1]), n, alpha) for n in looks]
        misses += any(bound is not None and not bound[0] <= rate <= bound[1] for bound in bounds)
    assert keeps_promise(misses, runs, alpha)


def test_the_p95_is_covered_at_every_look_as_often_as_promised():
    source, runs, alpha, truth = np.random.default_rng(6), 40, 0.1, math.exp(0.5 * 1.6449)
    misses = 0
    for _ in range(runs):
        values, seen = np.exp(0.5 * source.standard_normal(1200)), LogHistogram()
        for number, value in enumerate(values, start=1):
            seen.add(float(value))
            if number % 100 == 0:
                bounds = quantile_interval(seen, 0.95, number, alpha)
                assert bounds is not None
                below = bounds[0] is not None and bounds[0] > truth * 1.02
                above = bounds[1] is not None and bounds[1] < truth / 1.02
                if below or above:
                    misses += 1
                    break
    assert keeps_promise(misses, runs, alpha)


@pytest.mark.parametrize(("count", "low", "high"), [(500, 0.86, 1.20), (1000, 0.89, 1.13), (5000, 0.94, 1.07)])
def test_the_p95_interval_is_about_as_narrow_as_published(count, low, high):
    values = np.exp(0.5 * np.random.default_rng(0).standard_normal(100_000))
    bounds = quantile_interval(histogram(values), 0.95, count, 0.05)
    assert bounds is not None
    lower, upper = bounds
    truth = math.exp(0.5 * 1.6449)
    assert lower is not None
    assert lower / truth > low
    assert upper is not None
    assert upper / truth < high


def test_a_hundred_requests_bound_no_p95_from_above():
    values = np.exp(0.5 * np.random.default_rng(0).standard_normal(10_000))
    bounds = quantile_interval(histogram(values), 0.95, 60, 0.05)
    assert bounds is not None
    assert bounds[1] is None


def test_nothing_seen_means_no_interval():
    assert mean_interval(0.0, 0.0, 0.05) is None
    assert quantile_interval(LogHistogram(), 0.95, 10, 0.05) is None


@pytest.mark.parametrize(("q", "alpha"), [(0.95, 0.025), (0.95, 0.05), (0.99, 0.05)])
def test_one_sample_fewer_than_needed_leaves_the_quantile_unbounded(q, alpha):
    values, needed = histogram(np.exp(np.random.default_rng(0).standard_normal(10_000))), samples_to_bound(q, alpha)
    enough, too_few = quantile_interval(values, q, needed, alpha), quantile_interval(values, q, needed - 1, alpha)
    assert enough is not None
    assert None not in enough
    assert too_few is not None
    assert too_few[1] is None

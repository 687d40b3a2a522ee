from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.stats.bounded_mean import STAKES, log_factors, lower_bound
from canary.stats.eprocess import log_mean_exp

values = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 5)), max_size=8)
floors = st.floats(0.01, 0.99)


@settings(max_examples=40, deadline=None)
@given(values, values, floors)
def test_two_batches_amount_to_their_union(first, second, floor):
    apart = [a + b for a, b in zip(log_factors(first, floor), log_factors(second, floor), strict=True)]
    assert apart == pytest.approx(log_factors(first + second, floor), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(floors, st.floats(0, 1), st.floats(0, 1))
def test_the_mean_factor_is_at_most_one_while_the_mean_is_at_the_floor_or_above(floor, low_share, spread):
    low = floor * (1 - spread)
    high = min(1.0, (floor - low_share * low) / (1 - low_share)) if low_share < 1 else 1.0
    if low_share * low + (1 - low_share) * high < floor - 1e-12:
        return
    lows, highs = log_factors([(low, 1)], floor), log_factors([(high, 1)], floor)
    for a, b in zip(lows, highs, strict=True):
        assert low_share * math.exp(a) + (1 - low_share) * math.exp(b) <= 1 + 1e-9


@settings(max_examples=40, deadline=None)
@given(floors)
def test_no_value_can_ruin_a_bet(floor):
    assert all(math.isfinite(factor) for factor in log_factors([(1.0, 1)], floor))
    assert len(log_factors([], floor)) == len(STAKES)


@settings(max_examples=20, deadline=None)
@given(values, st.sampled_from([0.2, 0.01]))
def test_the_lower_bound_is_the_least_mean_that_the_values_do_not_refute(seen, alpha):
    turned = [(1.0 - value, count) for value, count in seen]
    fitting = [
        mean
        for mean in (step / 500 for step in range(1, 500))
        if log_mean_exp(log_factors(turned, 1.0 - mean)) < -math.log(alpha)
    ]
    found = lower_bound(seen, alpha)
    assert 0.0 <= found <= sum(value * count for value, count in seen) / max(1, sum(count for _, count in seen))
    assert found == pytest.approx(min(fitting), abs=1 / 400)


def test_more_of_the_same_values_prove_more():
    bounds = [lower_bound([(0.6, count), (0.8, count)], 0.01) for count in (0, 1, 10, 100, 1000)]
    assert bounds[0] == 0.0
    assert bounds == sorted(bounds)
    assert 0.68 < bounds[-1] < 0.7

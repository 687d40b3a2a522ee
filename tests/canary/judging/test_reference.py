from __future__ import annotations

import numpy as np
import pytest

from canary.judging.reference import FEWEST_REQUESTS, MOST_REQUESTS, Reference
from fleet.histogram import LogHistogram
from tests.canary.stats.streams import keeps_promise


def batch(*values: float) -> LogHistogram:
    found = LogHistogram()
    for value in values:
        found.add(1.0 + value)
    return found


def beta(source: np.random.Generator, count: int) -> LogHistogram:
    """Acceptance around 0.7 with a deviation of 0.15."""
    weight = 0.7 * 0.3 / 0.15**2 - 1.0
    return batch(*source.beta(0.7 * weight, 0.3 * weight, count))


def test_a_given_reference_learns_nothing():
    given = Reference.given(0.6)
    assert given.learn(batch(0.1, 0.2), 0.1) is given
    assert given.missing(0.1) == 0


def test_a_learned_reference_seldom_lies_above_the_truth_whatever_ended_the_learning():
    source, runs, alpha, too_high = np.random.default_rng(1), 100, 0.1, 0
    for _ in range(runs):
        reference, tops = Reference(alpha=alpha), 0.0
        while not reference.is_settled:
            reference = reference.learn(beta(source, 40), 0.2)
            tops = max(tops, reference.value)
        assert reference.value >= 0.9 * 0.7 * 0.93, "and not far below it"
        too_high += tops > 0.7
    assert keeps_promise(too_high, runs, alpha)


def test_the_mean_of_the_first_fifty_would_lie_above_a_floor_of_two_percent_less_in_a_quarter_of_all_cases():
    source = np.random.default_rng(2)
    means = np.array([beta(source, FEWEST_REQUESTS).sum / FEWEST_REQUESTS - 1.0 for _ in range(400)])
    assert 0.15 < np.mean(0.98 * means > 0.7) < 0.35, "which is why it is not taken for the truth"


def test_a_smaller_limit_takes_more_requests_and_none_waits_for_ever():
    source = np.random.default_rng(3)
    counts = {}
    for limit in (0.3, 0.1, 0.0):
        reference = Reference(alpha=0.01)
        while not reference.is_settled:
            reference = reference.learn(beta(source, 50), limit)
        counts[limit] = reference.learned.total
    assert FEWEST_REQUESTS <= counts[0.3] < counts[0.1] < counts[0.0] == MOST_REQUESTS


def test_what_is_missing_is_foretold():
    source = np.random.default_rng(4)
    reference = Reference(alpha=0.01)
    assert reference.missing(0.1) >= FEWEST_REQUESTS
    for _ in range(2):
        reference = reference.learn(beta(source, 50), 0.1)
    foretold = reference.learned.total + reference.missing(0.1)
    while not reference.is_settled:
        reference = reference.learn(beta(source, 10), 0.1)
    assert reference.learned.total == pytest.approx(foretold, rel=0.5)


def test_nothing_accepted_settles_at_nothing():
    reference = Reference(alpha=0.01).learn(batch(*[0.0] * FEWEST_REQUESTS), 0.1)
    assert (reference.is_settled, reference.value) == (True, 0.0)

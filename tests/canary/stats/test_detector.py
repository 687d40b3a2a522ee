from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.stats.bounded_mean import STAKES, log_factors
from canary.stats.detector import EDetector
from canary.stats.eprocess import EProcess
from tests.canary.stats.streams import keeps_promise


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.floats(-2, 2), min_size=2, max_size=2), min_size=1, max_size=15))
def test_the_detector_sums_over_every_moment_at_which_the_change_may_have_begun(rounds):
    detector = EDetector.start(2)
    for factor in rounds:
        detector = detector.update(factor)
    sums = [
        sum(math.exp(sum(factor[bet] for factor in rounds[begin:])) for begin in range(len(rounds))) for bet in (0, 1)
    ]
    assert math.exp(detector.log_e) == pytest.approx(sum(sums) / 2)


def requests(source, mean: float, count: int) -> list[tuple[float, int]]:
    return [(float(value), 1) for value in np.clip(source.normal(mean, 0.15, count), 0.0, 1.0)]


def test_at_the_very_floor_false_alarms_within_a_horizon_keep_the_promise():
    source, runs, horizon, alpha, floor = np.random.default_rng(2), 100, 40, 0.05, 0.63
    alarms = 0
    for _ in range(runs):
        detector, values = EDetector.start(len(STAKES)), np.clip(source.normal(0, 0.15, (horizon, 5)) + floor, 0, 1)
        for window in values:
            detector = detector.update(log_factors([(float(x), 1) for x in window], floor))
            if detector.log_e >= math.log(horizon / alpha):
                alarms += 1
                break
    assert keeps_promise(alarms, runs, alpha)


def test_a_late_drop_is_seen_soon_where_an_e_process_has_gone_blind():
    source, floor, threshold = np.random.default_rng(4), 0.63, math.log(1e4)
    detector, process = EDetector.start(len(STAKES)), EProcess.start(len(STAKES))
    for _ in range(500):
        factor = log_factors(requests(source, 0.70, 10), floor)
        detector, process = detector.update(factor), process.update(factor)
        assert detector.log_e < threshold
    for _ in range(15):
        factor = log_factors(requests(source, 0.50, 10), floor)
        detector, process = detector.update(factor), process.update(factor)
    assert detector.log_e >= threshold > process.log_e

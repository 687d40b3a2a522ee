from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.stats.bounded_mean import STAKES, log_factors
from canary.stats.detector import EDetector, staked, unstaked
from canary.stats.eprocess import EProcess
from tests.canary.stats.streams import keeps_promise

WEIGHTS = st.lists(st.floats(0.01, 1.0), min_size=15, max_size=15)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.floats(-2, 2), min_size=2, max_size=2), min_size=1, max_size=15), WEIGHTS)
def test_the_detector_sums_over_every_moment_at_which_the_change_may_have_begun(rounds, stakes):
    detector = EDetector.start(2)
    for factor, stake in zip(rounds, stakes, strict=False):
        detector = detector.update(factor, stake)
    sums = [
        sum(stakes[begin] * math.exp(sum(factor[bet] for factor in rounds[begin:])) for begin in range(len(rounds)))
        for bet in (0, 1)
    ]
    assert math.exp(detector.log_r_mean) == pytest.approx(sum(sums) / 2)


def test_all_rounds_together_stake_one_capital_and_later_ones_less():
    assert unstaked(0) == 1.0
    assert sum(staked(number) for number in range(1, 1001)) + unstaked(1000) == pytest.approx(1.0)
    assert all(staked(number) > staked(number + 1) > 0 for number in (1, 2, 50, 10_000, 10_000_000))
    # A month of half minutes costs a constant more than spending evenly over just that month would.
    assert math.log(1 / staked(86_400)) == pytest.approx(math.log(86_400), abs=5.3)


def requests(source, mean: float, count: int) -> list[tuple[float, int]]:
    return [(float(value), 1) for value in np.clip(source.normal(mean, 0.15, count), 0.0, 1.0)]


@pytest.mark.parametrize("rounds", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_at_the_very_floor_the_chance_of_any_false_alarm_is_bounded_however_long_one_watches(rounds):
    """Fair coins as values: no stream at the floor gives the bets more to win. Stakes of 1 alarm in every long run."""
    source, runs, alpha, floor = np.random.default_rng(2), 100, 0.05, 0.5
    outcomes = {coin: log_factors([(float(coin), 1)], floor) for coin in (0, 1)}
    alarms = [0, 0]
    for _ in range(runs):
        spending = always = EDetector.start(len(STAKES))
        tops = [0.0, 0.0]
        for number, coin in enumerate(source.integers(0, 2, rounds), start=1):
            spending = spending.update(outcomes[int(coin)], staked(number))
            always = always.update(outcomes[int(coin)], 1.0)
            tops[0] = max(tops[0], math.exp(spending.log_r_mean) + unstaked(number))
            tops[1] = max(tops[1], math.exp(always.log_r_mean) * alpha / 80)  # as planned for 80 rounds
        alarms = [alarms[0] + (tops[0] >= 1 / alpha), alarms[1] + (tops[1] >= 1)]
    assert keeps_promise(alarms[0], runs, alpha)
    assert rounds == 40 or not keeps_promise(alarms[1], runs, alpha), "which is why the stakes shrink"


def test_a_late_drop_is_seen_soon_where_an_e_process_has_gone_blind():
    source, floor, threshold = np.random.default_rng(4), 0.63, math.log(200)
    detector, process = EDetector.start(len(STAKES)), EProcess.start(len(STAKES))
    for number in range(1, 501):
        factor = log_factors(requests(source, 0.70, 10), floor)
        detector, process = detector.update(factor, staked(number)), process.update(factor)
        assert detector.log_r_mean < threshold
    for number in range(501, 516):
        factor = log_factors(requests(source, 0.50, 10), floor)
        detector, process = detector.update(factor, staked(number)), process.update(factor)
    assert detector.log_r_mean >= threshold > process.log_e

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.stats.betting import BETS, CAP, Tail, log_factors
from canary.stats.eprocess import EProcess
from tests.canary.stats.streams import clustered_windows, keeps_promise

tails = st.integers(1, 500).flatmap(lambda total: st.builds(Tail, st.integers(0, total), st.just(total)))


def alarmed_at(windows, alpha: float, *, suspect_is_larger: bool = False) -> int | None:
    """Looks after every window."""
    process = EProcess.start(len(BETS))
    for number, (canary, stable) in enumerate(windows):
        process = process.update(log_factors(canary, stable, suspect_is_larger=suspect_is_larger))
        if process.log_e >= -math.log(alpha):
            return number
    return None


@settings(max_examples=40, deadline=None)
@given(tails, tails, st.booleans())
def test_no_window_can_ruin_a_bet(suspect, reference, is_larger):
    assert all(math.isfinite(factor) for factor in log_factors(suspect, reference, suspect_is_larger=is_larger))


@settings(max_examples=40, deadline=None)
@given(tails, tails)
def test_equal_shares_neither_win_nor_lose(suspect, reference):
    twin = Tail(reference.above * suspect.total, reference.total * suspect.total)
    assert log_factors(twin, reference, suspect_is_larger=False) == pytest.approx([0.0] * len(BETS), abs=1e-12)


def test_a_window_without_one_of_the_arms_is_no_bet():
    assert log_factors(Tail(0, 0), Tail(1, 10), suspect_is_larger=False) == (0.0,) * len(BETS)
    assert log_factors(Tail(9, 10), Tail(0, 0), suspect_is_larger=True) == (0.0,) * len(BETS)


def test_one_terrible_window_counts_no_more_than_the_cap():
    terrible, bad = Tail(100, 100), Tail(round(100 * CAP), 100)
    reference = Tail(5, 100)
    assert log_factors(terrible, reference, suspect_is_larger=False) == log_factors(
        bad, reference, suspect_is_larger=False
    )


@pytest.mark.parametrize(
    ("requests", "is_larger", "runs"),
    [
        ((2.0, 18.0), False, 40),
        ((9.0, 1.0), True, 40),
        pytest.param((2.0, 18.0), False, 1000, marks=pytest.mark.slow),
        pytest.param((10.0, 10.0), False, 1000, marks=pytest.mark.slow),
        pytest.param((9.0, 1.0), True, 1000, marks=pytest.mark.slow),
        pytest.param((18.0, 2.0), True, 1000, marks=pytest.mark.slow),
    ],
)
def test_equal_arms_are_told_apart_no_more_often_than_promised_however_often_one_looks(requests, is_larger, runs):
    source, alpha = np.random.default_rng(20260101), 0.05
    alarms = sum(
        alarmed_at(
            clustered_windows(source, windows=80, requests=requests, slowdown=1.0, margin=0.0),
            alpha,
            suspect_is_larger=is_larger,
        )
        is not None
        for _ in range(runs)
    )
    assert keeps_promise(alarms, runs, alpha)


@pytest.mark.parametrize(("slowdown", "within"), [(1.25, 60), (1.5, 25)])
def test_a_slower_canary_is_found_in_a_few_dozen_windows(slowdown, within):
    source = np.random.default_rng(7)
    found = [
        alarmed_at(
            clustered_windows(source, windows=within, requests=(10.0, 90.0), slowdown=slowdown, margin=0.0), 0.05
        )
        for _ in range(20)
    ]
    assert sum(at is not None for at in found) >= 18


def test_a_slowdown_within_the_margin_is_left_alone():
    source, runs = np.random.default_rng(11), 30
    alarms = sum(
        alarmed_at(clustered_windows(source, windows=80, requests=(10.0, 30.0), slowdown=1.1, margin=0.1), 0.05)
        is not None
        for _ in range(runs)
    )
    assert keeps_promise(alarms, runs, 0.05)


def test_the_reverse_bet_shows_that_a_faster_canary_is_no_worse():
    source = np.random.default_rng(3)
    windows = clustered_windows(source, windows=60, requests=(10.0, 10.0), slowdown=0.7, margin=0.1)
    reversed_arms = [(stable, canary) for canary, stable in windows]
    at = alarmed_at(reversed_arms, 0.05)
    assert at is not None
    assert at < 60

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.stats.betting import (
    BETS,
    CAP,
    Tail,
    log_factors,
    log_ratio,
    share_difference,
    slo_excess,
    tail_difference,
)
from canary.stats.eprocess import EProcess
from tests.canary.stats.streams import clustered_windows, keeps_promise

tails = st.integers(1, 500).flatmap(lambda total: st.builds(Tail, st.integers(0, total), st.just(total)))


def alarmed_at(windows, alpha: float, *, suspect_is_larger: bool = False) -> int | None:
    """Looks after every window."""
    process = EProcess.start(len(BETS))
    for number, (canary, stable) in enumerate(windows):
        if not canary.total or not stable.total:
            continue
        process = process.update(log_factors(tail_difference(canary, stable, suspect_is_larger=suspect_is_larger)))
        if process.log_e >= -math.log(alpha):
            return number
    return None


@settings(max_examples=40, deadline=None)
@given(tails, tails, st.booleans())
def test_no_window_can_ruin_a_bet(suspect, reference, is_larger):
    found = [tail_difference(suspect, reference, suspect_is_larger=is_larger)]
    for of in (reference, None):
        found.append(slo_excess(suspect, of, allowed=0.01, suspect_is_larger=is_larger))
    shares = suspect.share, reference.share
    found += [
        share_difference(*shares, margin=0.05, usual=usual, suspect_is_larger=is_larger) for usual in (0.0, 0.4, 1.0)
    ]
    found.append(log_ratio(1.0 + suspect.above, 1.0 + reference.above, span=0.15))
    assert all(-1.0 <= difference <= 1.0 for difference in found)
    assert all(math.isfinite(factor) for difference in found for factor in log_factors(difference))


@settings(max_examples=40, deadline=None)
@given(tails, tails)
def test_equal_shares_neither_win_nor_lose(suspect, reference):
    twin = Tail(reference.above * suspect.total, reference.total * suspect.total)
    assert tail_difference(twin, reference, suspect_is_larger=False) == pytest.approx(0.0, abs=1e-12)
    assert log_factors(0.0) == (0.0,) * len(BETS)


def test_one_terrible_window_counts_no_more_than_the_cap():
    terrible, bad = Tail(100, 100), Tail(round(100 * CAP), 100)
    reference = Tail(5, 100)
    assert tail_difference(terrible, reference, suspect_is_larger=False) == tail_difference(
        bad, reference, suspect_is_larger=False
    )


def test_a_limit_that_stable_breaks_as_much_is_no_accusation():
    def excess(stable: Tail | None) -> float:
        return slo_excess(Tail(6, 100), stable, allowed=0.01, suspect_is_larger=False)

    assert excess(Tail(0, 100)) == excess(None) == pytest.approx(0.5)
    assert excess(Tail(6, 100)) == pytest.approx(0.0)
    assert excess(Tail(9, 100)) < 0.0


@pytest.mark.parametrize(("is_larger", "usual", "scale"), [(False, 0.05, 0.35), (False, 0.9, 1.05), (True, 0.05, 1.05)])
def test_a_share_within_its_margin_is_no_accusation(is_larger, usual, scale):
    def difference(suspect: float) -> float:
        return share_difference(suspect, 0.05, margin=0.05, usual=usual, suspect_is_larger=is_larger)

    assert difference(0.10) == pytest.approx(0.0)
    assert difference(0.20) == pytest.approx(0.10 / scale)


def test_a_share_that_is_usually_high_can_still_be_seen_to_rise():
    assert share_difference(0.6, 0.36, margin=0.05, usual=0.36, suspect_is_larger=False) > 0.25


@given(st.floats(0.01, 100.0), st.floats(0.01, 100.0))
def test_the_log_ratio_changes_its_sign_when_the_arms_change_places(one, other):
    assert log_ratio(one, other, span=0.15) == pytest.approx(-log_ratio(other, one, span=0.15), abs=1e-9)


@pytest.mark.parametrize(
    ("requests", "is_larger", "runs"),
    [
        ((2.0, 18.0), False, 40),
        ((9.0, 1.0), True, 40),
        pytest.param((2.0, 18.0), False, 1000, marks=pytest.mark.patient),
        pytest.param((10.0, 10.0), False, 1000, marks=pytest.mark.patient),
        pytest.param((9.0, 1.0), True, 1000, marks=pytest.mark.patient),
        pytest.param((18.0, 2.0), True, 1000, marks=pytest.mark.patient),
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

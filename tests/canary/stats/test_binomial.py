from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.stats.binomial import EXCESSES, Count, log_factors
from canary.stats.eprocess import EProcess
from tests.canary.stats.streams import keeps_promise

rates = st.floats(0.0, 1.0)


def likelihood(failures: int, trials: int, rate: float) -> float:
    return math.comb(trials, failures) * rate**failures * (1 - rate) ** (trials - failures)


def alarmed_at(source, *, rates, trials, margin, blocks, alpha=0.05) -> int | None:
    process, seen = EProcess.start(len(EXCESSES)), Count()
    for number in range(blocks):
        canary, stable = (Count(int(source.binomial(n, p)), n) for n, p in zip(trials, rates, strict=True))
        process = process.update(log_factors(canary, stable, margin=margin, seen=seen))
        seen = seen + stable
        if process.log_e >= -math.log(alpha):
            return number
    return None


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), rates, rates, st.floats(0, 0.2), st.integers(0, 40))
def test_the_mean_factor_never_exceeds_one_under_any_null(canary_trials, stable_trials, first, second, margin, seen):
    p_stable = min(first, 1.0 - margin)
    p_canary = min(second, p_stable + margin)
    means = np.zeros(len(EXCESSES))
    for x in range(canary_trials + 1):
        for y in range(stable_trials + 1):
            chance = likelihood(x, canary_trials, p_canary) * likelihood(y, stable_trials, p_stable)
            logs = log_factors(
                Count(x, canary_trials), Count(y, stable_trials), margin=margin, seen=Count(seen // 10, seen)
            )
            means += chance * np.exp(logs)
    assert (means <= 1.0 + 1e-9).all()


def test_a_window_without_one_of_the_arms_is_no_bet():
    assert log_factors(Count(), Count(3, 10), margin=0.01, seen=Count()) == (0.0,) * len(EXCESSES)


@pytest.mark.parametrize(
    ("rates", "runs"),
    [
        ((0.055, 0.05), 20),
        pytest.param((0.005, 0.005), 500, marks=pytest.mark.patient),
        pytest.param((0.055, 0.05), 500, marks=pytest.mark.patient),
        pytest.param((0.3, 0.3), 500, marks=pytest.mark.patient),
    ],
)
def test_failures_within_the_margin_alarm_no_more_often_than_promised(rates, runs):
    source = np.random.default_rng(5)
    alarms = sum(
        alarmed_at(source, rates=rates, trials=(4, 36), margin=0.005, blocks=60) is not None for _ in range(runs)
    )
    assert keeps_promise(alarms, runs, 0.05)


@pytest.mark.parametrize(("p_canary", "requests"), [(0.05, 400), (0.2, 60)])
def test_a_failing_canary_is_found(p_canary, requests):
    source = np.random.default_rng(9)
    found = [
        alarmed_at(source, rates=(p_canary, 0.005), trials=(10, 90), margin=0.005, blocks=requests // 10)
        for _ in range(20)
    ]
    assert sum(at is not None for at in found) >= 18


def test_a_canary_that_always_fails_is_found_within_ten_requests():
    source = np.random.default_rng(1)
    assert alarmed_at(source, rates=(1.0, 0.0), trials=(2, 8), margin=0.005, blocks=5) is not None


def test_an_outage_of_both_paths_is_no_evidence_against_one_of_them():
    process = EProcess.start(len(EXCESSES))
    for _ in range(20):
        process = process.update(log_factors(Count(4, 5), Count(40, 50), margin=0.005, seen=Count(1, 1000)))
    assert process.log_e < 0

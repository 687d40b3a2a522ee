from __future__ import annotations

import math

import numpy as np
import pytest

from canary.judging.accusation import Accusation, Budget
from canary.stats.betting import BETS, log_factors
from tests.canary.stats.streams import keeps_promise

WORSE, BETTER = log_factors(1.0), log_factors(-1.0)


def test_nothing_seen_is_an_e_value_of_one_against_one_threshold_before_and_after_promotion():
    fresh, budget = Accusation.start(len(BETS), 0.5), Budget(0.05, 0.05, watch=0.25)
    assert fresh.proof(budget).e_value == pytest.approx(1.0)
    late = fresh.settle(log_factors(0.0), is_promoted=True)
    assert late.proof(budget).e_value == pytest.approx(1.0)
    assert fresh.proof(budget).threshold == late.proof(budget).threshold == pytest.approx(20.0)


def test_a_plan_without_a_watch_has_all_capital_in_its_steps():
    alone = Accusation.start(len(BETS), 1.0).settle(WORSE, is_promoted=False)
    assert alone.proof(Budget(0.05, 0.05)).log_e == alone.process.log_e
    lost = alone
    for _ in range(3000):
        lost = lost.settle(BETTER, is_promoted=False)
    assert math.isfinite(lost.proof(Budget(0.05, 0.05)).log_e), "however much was lost"
    assert lost.proof(Budget(0.05, 0.05, watch=0.25)).e_value == pytest.approx(0.25)


def test_what_the_steps_lost_does_not_delay_what_the_watch_finds():
    accusation, budget = Accusation.start(len(BETS), 1.0), Budget(0.05, 0.05, watch=0.5)
    for _ in range(500):
        accusation = accusation.settle(BETTER, is_promoted=False)
    for _ in range(20):
        accusation = accusation.settle(WORSE, is_promoted=True)
    assert accusation.proof(budget).is_reached
    assert (accusation.bets, accusation.watched) == (520, 20)


def test_steps_and_a_watch_many_times_longer_spend_alpha_once():
    """Fair coins on the very limit: no stream within it gives the bets more to win."""
    source, runs, budget, trips = np.random.default_rng(7), 100, Budget(0.1, 0.1, watch=1 / 3), 0
    for _ in range(runs):
        accusation = Accusation.start(len(BETS), 0.5)
        for number, is_worse in enumerate(source.integers(0, 2, 600)):
            if number == 20:
                accusation = accusation.next_step(0.5)
            accusation = accusation.settle(WORSE if is_worse else BETTER, is_promoted=number >= 40)
            if accusation.proof(budget).is_reached:
                trips += 1
                break
    assert trips > 0
    assert keeps_promise(trips, runs, 0.1)

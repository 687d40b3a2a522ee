from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.stats.eprocess import EProcess, log_mean_exp

factors = st.lists(st.lists(st.floats(-2, 2), min_size=3, max_size=3), max_size=12)


@settings(max_examples=40, deadline=None)
@given(factors, st.floats(0.05, 1.0), st.integers(0, 12))
def test_wealth_agrees_with_a_gambler_who_counts_his_coins(rounds, share, staked_at):
    process, coins, reserve = EProcess.start(3, share), [share] * 3, 1.0 - share
    for number, factor in enumerate(rounds):
        if number == staked_at:
            process = process.stake(0.5)
            added = min(0.5, reserve)
            coins, reserve = [coin + added for coin in coins], reserve - added
        process = process.update(factor)
        coins = [coin * math.exp(log) for coin, log in zip(coins, factor, strict=True)]
    assert math.exp(process.log_e) == pytest.approx(sum(coins) / 3 + reserve)


def test_capital_that_is_not_staked_keeps_its_value():
    process = EProcess.start(2, 0.25).update([-50.0, -60.0])
    assert math.exp(process.log_e) == pytest.approx(0.75)


def test_no_more_than_the_capital_can_be_staked():
    process = EProcess.start(1, 0.75).stake(0.5).stake(0.5)
    assert process.reserve == 0
    assert math.exp(process.log_e) == pytest.approx(1.0)


def test_a_stake_saved_for_the_next_step_sees_what_a_poor_gambler_would_miss():
    good_step, bad_step = [[math.log(0.9)]] * 100, [[math.log(1.5)]] * 20
    all_at_once, in_shares = EProcess.start(1), EProcess.start(1, 0.5)
    for factor in good_step:
        all_at_once, in_shares = all_at_once.update(factor), in_shares.update(factor)
    in_shares = in_shares.stake(0.5)
    for factor in bad_step:
        all_at_once, in_shares = all_at_once.update(factor), in_shares.update(factor)
    assert in_shares.log_e > math.log(20) > all_at_once.log_e


def test_log_mean_exp_does_not_overflow():
    assert log_mean_exp([1000.0, 1000.0]) == pytest.approx(1000.0)
    assert log_mean_exp([-math.inf, -math.inf]) == -math.inf
    assert log_mean_exp(np.log([1.0, 3.0])) == pytest.approx(math.log(2.0))

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from canary.stats.bernoulli import ODDS, log_e, log_factors
from tests.canary.stats.streams import keeps_promise


@pytest.mark.parametrize("share", [0.02, 0.3, 0.95])
def test_each_factor_has_mean_one_when_the_share_is_as_set(share):
    for index in range(len(ODDS)):
        total = sum(
            float(binom.pmf(hits, 7, share)) * math.exp(log_factors(hits, 7, share)[index]) for hits in range(8)
        )
        assert total == pytest.approx(1.0)


def alarmed(draws: np.ndarray, set_share: float, copies: int) -> bool:
    ratios = np.zeros(len(ODDS))
    for hits in draws:
        ratios += log_factors(int(hits) * copies, 10 * copies, set_share)
        if log_e(list(ratios), copies) >= math.log(20):
            return True
    return False


@pytest.mark.parametrize("copies", [1, 3])
def test_a_correct_split_is_doubted_no_more_often_than_promised(copies):
    source, runs = np.random.default_rng(5), 150
    alarms = sum(alarmed(source.binomial(10, 0.2, 60), 0.2, copies) for _ in range(runs))
    assert keeps_promise(alarms, runs, 0.05)


def test_a_wrong_split_is_found_on_either_side():
    source = np.random.default_rng(6)
    for true_share in (0.1, 0.35):
        assert alarmed(source.binomial(10, true_share, 60), 0.2, 1)

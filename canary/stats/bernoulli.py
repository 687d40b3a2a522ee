"""In one window, how do the bets on "the coin does not have the share that was set" come out?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from canary.stats.eprocess import log_mean_exp

ODDS = (0.05, 0.25, 0.5, 0.8, 1.25, 2.0, 4.0, 20.0)
"""Alternatives: factor on the odds of the share that was set, to both sides."""


def log_factors(hits: int, trials: int, share: float) -> tuple[float, ...]:
    """One log factor per alternative of `hits` in `trials`, against hits ~ Binomial(trials, share), 0 < share < 1.

    The likelihood ratio of each alternative has mean 1 under the null, whatever the number of trials
    (conditional e-processes for counts: Lindon & Malek, arXiv 2011.03567).
    """
    return tuple(_log_ratio(hits, trials - hits, share, odds) for odds in ODDS)


def log_e(log_ratios: Sequence[float], observers: int) -> float:
    """Natural logarithm of the e-value, where each trial may have been counted once by each of several observers.

    The product of the observers' ratios to the power 1/observers still has mean ≤ 1, by Hölder's
    inequality, however they depend on each other. observers ≥ 1.
    """
    return log_mean_exp([value / observers for value in log_ratios])


def _log_ratio(hits: int, misses: int, share: float, odds: float) -> float:
    scale = 1.0 - share + odds * share
    return hits * math.log(odds / scale) - misses * math.log(scale)

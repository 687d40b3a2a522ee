"""How do bets on "the mean of these values in [0, 1] is below the floor" come out, and which mean do values prove?"""

from __future__ import annotations

import math
from collections.abc import Iterable

from scipy.optimize import brentq

from canary.stats.eprocess import log_mean_exp

STAKES = (0.1, 0.2, 0.35, 0.5, 0.7, 0.9)
"""Shares of the largest stake that can never lose everything."""


def log_factors(values: Iterable[tuple[float, int]], floor: float) -> tuple[float, ...]:
    """One log factor per stake of (value, how often) pairs, against E[value | past] ≥ floor.

    The factor of one value x is 1 + bet (floor - x) with bet = stake/(1 - floor), which is positive for
    every x in [0, 1] and has mean ≤ 1 under the null (Waudby-Smith & Ramdas, arXiv 2010.09686, section 4).
    Products of several values are again such factors, in whatever order they came. 0 < floor < 1.
    """
    counted = list(values)
    return tuple(
        sum(count * math.log1p(stake / (1.0 - floor) * (floor - value)) for value, count in counted) for stake in STAKES
    )


def lower_bound(values: Iterable[tuple[float, int]], alpha: float) -> float:
    """Lower end of a confidence sequence for the mean of all (value, how often) pairs so far, in [0, 1).

    The least mean m against which the wealth of the same bets, turned over, stays below 1/alpha: factors
    1 + stake/m (value - m), which fall with m (the betting confidence sequence; Waudby-Smith & Ramdas, arXiv
    2010.09686, Theorem 3, lower side, with fixed stakes). It holds at every number of values at once with
    probability 1 - alpha, whatever their order and spread. Rounded down to within 1e-4.
    """
    counted = list(values)
    count = sum(often for _, often in counted)
    mean = sum(value * often for value, often in counted) / count if count else 0.0
    turned = [(1.0 - value, often) for value, often in counted]

    def excess(m: float) -> float:
        return log_mean_exp(log_factors(turned, 1.0 - m)) + math.log(alpha)

    if mean <= _PRECISION or excess(_PRECISION) <= 0:
        return 0.0
    return max(0.0, float(brentq(excess, _PRECISION, mean, xtol=_PRECISION / 2)) - _PRECISION)


_PRECISION = 1e-4

"""In one window, how do the bets on "the mean of these values in [0, 1] has fallen below the floor" come out?"""

from __future__ import annotations

import math
from collections.abc import Iterable

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

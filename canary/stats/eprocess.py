"""How strong is the evidence against "the canary is fine", summed over the whole attempt?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EProcess:
    """Wealth of a gambler who cannot expect to win under the null hypothesis, whenever he stops.

    Each bet multiplies its own wealth by a factor with mean ≤ 1 under the null, so that the mean over
    bets is an e-process and P(it ever reaches 1/alpha) ≤ alpha (Ville's inequality; Waudby-Smith &
    Ramdas, arXiv 2010.09686). A part of the capital may stay in reserve and be staked later, such as at
    the start of each step: unstaked capital keeps its value, so that the sum remains an e-process while
    a loss of wealth in a long good step cannot hide what begins in the next one.
    """

    log_wealth: tuple[float, ...]
    """One natural logarithm per bet, each relative to the whole capital."""
    reserve: float
    """Share of the capital not yet staked, 0 to 1."""

    @classmethod
    def start(cls, bets: int, share: float = 1.0) -> EProcess:
        """Stake `share` (0 < share ≤ 1) of the capital at once."""
        return cls((math.log(share),) * bets, 1.0 - share)

    def stake(self, share: float) -> EProcess:
        """Put a further share of the capital on every bet, as far as the reserve goes."""
        added = min(share, self.reserve)
        if added <= 0:
            return self
        return EProcess(tuple(log_add(w, math.log(added)) for w in self.log_wealth), self.reserve - added)

    def update(self, log_factors: Sequence[float]) -> EProcess:
        """Settle one round: one log factor per bet."""
        moved = zip(self.log_wealth, log_factors, strict=True)
        return EProcess(tuple(wealth + factor for wealth, factor in moved), self.reserve)

    @property
    def log_e(self) -> float:
        """Natural logarithm of the e-value."""
        return (
            log_mean_exp(self.log_wealth)
            if self.reserve <= 0
            else log_add(log_mean_exp(self.log_wealth), math.log(self.reserve))
        )


def log_mean_exp(values: Sequence[float]) -> float:
    """log of the mean of exp(values), without overflow."""
    top = max(values)
    if math.isinf(top):
        return top
    return top + math.log(sum(math.exp(value - top) for value in values) / len(values))


def log_weighted_sum_exp(values: Sequence[float], weights: Sequence[float]) -> float:
    """log of the sum of weight · exp(value), without overflow; a value of -inf adds nothing."""
    top = max(values)
    if math.isinf(top):
        return top
    return top + math.log(sum(w * math.exp(value - top) for value, w in zip(values, weights, strict=True)))


def log_add(a: float, b: float) -> float:
    """log(exp(a) + exp(b)) for a finite b."""
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))

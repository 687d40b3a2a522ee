"""Has something changed for the worse at some unknown moment, in a stream without an end?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from canary.stats.eprocess import log_add, log_mean_exp


@dataclass(frozen=True, slots=True)
class EDetector:
    """Sum over all moments at which the change may have begun, each an e-process with a stake of its own.

    R_t = (R_{t-1} + w_t) e_t, averaged over bets: the Shiryaev-Roberts e-detector (Shin, Ramdas, Rinaldo, arXiv
    2203.03532, section 2) with stakes w_t instead of 1. An e-process that has watched a long good time has lost
    its wealth and is slow to see a late change; here every round brings a new stake. With stakes of 1 only the
    mean time between false alarms is bounded; with the stakes of `staked`, whose sum is 1, so is the chance of
    any: R_t + `unstaked(t)` is a mean of e-processes with fixed weights, hence a non-negative supermartingale
    that begins at 1, and P(it ever reaches 1/alpha) ≤ alpha (Ville's inequality; arXiv 2010.09686, section 2).
    What that costs is a delay that grows with log(1/w_t), slowly, by the time that was watched before.
    """

    log_r: tuple[float, ...]
    """log R, one per bet; -inf before the first update."""

    @classmethod
    def start(cls, bets: int) -> EDetector:
        return cls((-math.inf,) * bets)

    def update(self, log_factors: Sequence[float], stake: float) -> EDetector:
        """One observation: one log e-value per bet, and the stake > 0 that is added before it."""
        log_stake = math.log(stake)
        moved = zip(self.log_r, log_factors, strict=True)
        return EDetector(tuple(log_add(r, log_stake) + factor for r, factor in moved))

    @property
    def log_r_mean(self) -> float:
        """Natural logarithm of the mean R; -inf before the first update."""
        return log_mean_exp(self.log_r)


def unstaked(rounds: int) -> float:
    """What is left of a capital of 1 after so many rounds ≥ 0: ln 2/ln(rounds + 2)."""
    return math.log(2.0) / math.log(rounds + 2.0)


def staked(number: int) -> float:
    """What is staked in a round, counted from 1: about ln 2/(n ln² n), 0.37 in the first, 1 in 300,000 in the 3,000th.

    All rounds together stake 1. Up to the power of the logarithm no stakes shrink more slowly (sum 1/n diverges),
    so a late change is found about as soon as such a promise allows.
    """
    return unstaked(number - 1) - unstaked(number)

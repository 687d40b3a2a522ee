"""Has something changed for the worse at some unknown moment, in a stream without an end?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from canary.stats.eprocess import log_mean_exp


@dataclass(frozen=True, slots=True)
class EDetector:
    """A Shiryaev-Roberts e-detector: R_t = (R_{t-1} + 1) e_t, averaged over bets.

    An e-process that has watched a long good time has lost its wealth and is slow to see a late change;
    this sums over all possible moments of change instead (Shin, Ramdas, Rinaldo, arXiv 2203.03532,
    Definition 2.4 and Theorem 2.7). An alarm at R ≥ A has an average run length to a false alarm of at
    least A updates; and, as R_t - t is a supermartingale under the null, P(a false alarm within T
    updates) ≤ T/A.
    """

    log_r: tuple[float, ...]
    """log R, one per bet; -inf before the first update."""

    @classmethod
    def start(cls, bets: int) -> EDetector:
        return cls((-math.inf,) * bets)

    def update(self, log_factors: Sequence[float]) -> EDetector:
        """One observation: one log e-value per bet."""
        moved = zip(self.log_r, log_factors, strict=True)
        return EDetector(tuple(_log_one_plus_exp(r) + factor for r, factor in moved))

    @property
    def log_e(self) -> float:
        """Natural logarithm of the mean R; -inf before the first update."""
        return log_mean_exp(self.log_r)


def _log_one_plus_exp(value: float) -> float:
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))

"""In one window, how do the bets on "the canary fails more often than stable plus a margin" come out?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.optimize import brentq

EXCESSES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Alternatives: share of the way from the highest tolerated rate to 1."""


@dataclass(frozen=True, slots=True)
class Count:
    """So many failures in so many trials."""

    failures: int = 0
    trials: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.failures + other.failures, self.trials + other.trials)

    @property
    def rate(self) -> float | None:
        return self.failures / self.trials if self.trials else None


def log_factors(canary: Count, stable: Count, *, margin: float, seen: Count) -> tuple[float, ...]:
    """One log factor per alternative, of a window's counts, against p_canary ≤ p_stable + margin.

    The two-sample e-variable for convex nulls (Turner, Ly, Grünwald, arXiv 2106.02693; Turner & Grünwald,
    arXiv 2203.09785): the likelihood of the alternative (a_c, a_s) divided by that of the point
    (q_c, q_s) of the null that is nearest to it, weighted with the arms' trials. For any (p_c, p_s) in the
    null its mean is at most exp(sum_i n_i (p_i - q_i)(a_i - q_i) / (q_i (1 - q_i))), and that exponent is
    ≤ 0 because q minimises sum_i n_i kl(a_i, q_i) over a convex set. So rates may drift from window to
    window, both arms together or the canary downwards, and nothing is approximated.

    `seen` holds stable's counts from windows strictly before; it places the alternatives and affects
    power only, never validity.
    """
    if not canary.trials or not stable.trials:
        return (0.0,) * len(EXCESSES)
    base = min((seen.failures + 0.5) / (seen.trials + 100.0), (1.0 - margin) / 2.0)
    tolerated = base + margin
    return tuple(
        _log_ratio(canary, stable, margin, (tolerated + excess * (1.0 - tolerated), base)) for excess in EXCESSES
    )


def _log_ratio(canary: Count, stable: Count, margin: float, alternative: tuple[float, float]) -> float:
    a_canary, a_stable = min(alternative[0], 1.0 - 1e-9), alternative[1]

    def slope(q: float) -> float:
        """Derivative of the weighted divergence along the edge of the null, where q_canary = q + margin."""
        return canary.trials * _divergence_slope(a_canary, q + margin) + stable.trials * _divergence_slope(a_stable, q)

    nearest = float(brentq(slope, a_stable, a_canary - margin, xtol=1e-14))
    return _log_likelihood_ratio(canary, a_canary, nearest + margin) + _log_likelihood_ratio(stable, a_stable, nearest)


def _divergence_slope(a: float, q: float) -> float:
    """d/dq kl(a, q)."""
    return (q - a) / (q * (1.0 - q))


def _log_likelihood_ratio(count: Count, a: float, q: float) -> float:
    return count.failures * math.log(a / q) + (count.trials - count.failures) * math.log((1.0 - a) / (1.0 - q))

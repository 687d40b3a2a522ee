"""How sure is a ratio that was measured in paired blocks?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import t

Floats = npt.NDArray[np.float64]
RESAMPLES = 4_999
QUANTILE_RESAMPLES = 499
MIN_ROUNDS = 5
"""With fewer paired rounds no claim is made."""
MOST_ROUNDS = 200
"""More are not worth proposing."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate of a ratio with its 95 % confidence interval."""

    estimate: float
    low: float
    high: float


class PairedEffect:
    """The mean of one log-ratio per round, with the studentised bootstrap over rounds (bootstrap-t).

    Rounds are the unit, as requests of one round share the state of the machine. θ* − θ over its own standard error
    is resampled, so that few rounds give wide intervals instead of false ones (Efron & Tibshirani, An Introduction to
    the Bootstrap, 1993, section 12.5). At least two finite values are needed.
    """

    def __init__(self, log_ratios: Sequence[float], seed: int, resamples: int = RESAMPLES) -> None:
        values = np.asarray(log_ratios, dtype=float)
        self.rounds = len(values)
        self.mean = float(values.mean())
        self.standard_error = float(values.std(ddof=1) / np.sqrt(len(values)))
        chosen = values[np.random.default_rng(seed).integers(len(values), size=(resamples, len(values)))]
        moved = chosen.mean(axis=1) - self.mean
        errors = chosen.std(axis=1, ddof=1) / np.sqrt(len(values))
        # A resample of one value many times over has no spread: its t is unbounded on both sides.
        with np.errstate(divide="ignore", invalid="ignore"):
            self._t = np.sort(np.where(errors > 0, moved / errors, np.copysign(np.inf, moved)))

    def ratio(self) -> Interval:
        """The ratio of geometric means, with its 95 % interval."""
        if self.standard_error == 0:
            return Interval(*np.exp([self.mean] * 3).tolist())
        low, high = (self.mean - self.standard_error * self._t[self._rank(q)] for q in (0.975, 0.025))
        return Interval(*np.exp([self.mean, low, high]).tolist())

    def p_above(self, bound: float) -> float:
        """One-sided p-value against "the mean log-ratio is at most `bound`"."""
        return self._p(bound, 1)

    def p_below(self, bound: float) -> float:
        """One-sided p-value against "the mean log-ratio is at least `bound`"."""
        return self._p(bound, -1)

    def _p(self, bound: float, side: int) -> float:
        distance = side * (self.mean - bound)
        if distance <= 0:
            return 1.0
        if self.standard_error == 0:
            return 1.0 / (len(self._t) + 1)
        beyond = int(np.count_nonzero(side * self._t >= distance / self.standard_error))
        return (1 + beyond) / (len(self._t) + 1)

    def _rank(self, q: float) -> int:
        resamples = len(self._t)
        return min(resamples - 1, max(0, round(q * (resamples + 1)) - 1))


def rounds_needed(effect: PairedEffect, distance: float, alpha: float) -> int | None:
    """How many rounds would claim an effect `distance` off its bound at level alpha with 80 % power.

    By the t-test for rounds that spread like those seen; None where more than `MOST_ROUNDS` would be needed.
    """
    spread = effect.standard_error * math.sqrt(effect.rounds)
    counts = np.arange(effect.rounds + 1, MOST_ROUNDS + 1)
    reach = t.ppf(1 - alpha, counts - 1) + t.ppf(0.8, counts - 1)
    enough = counts[abs(distance) * np.sqrt(counts) >= reach * spread]
    return int(enough[0]) if len(enough) else None


def quantile_ratio(above: Sequence[Floats], below: Sequence[Floats], q: float, seed: int) -> Interval | None:
    """Ratio of the q-quantiles of two samples that come in paired rounds, with a 95 % interval.

    Rounds are drawn with replacement, both arms of a round together (percentile bootstrap). For description: with few
    rounds the interval is too narrow, so no verdict rests on it. None where a sample is empty.
    """
    if not any(map(len, above)) or not any(map(len, below)):
        return None
    drawn = np.random.default_rng(seed).integers(len(above), size=(QUANTILE_RESAMPLES, len(above)))
    counts = np.stack([np.bincount(row, minlength=len(above)) for row in drawn])
    everything = np.vstack([np.ones((1, len(above)), dtype=counts.dtype), counts])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = _quantiles(above, everything, q) / _quantiles(below, everything, q)
    known = ratios[1:][np.isfinite(ratios[1:])]
    if not np.isfinite(ratios[0]) or not len(known):
        return None
    low, high = np.quantile(known, (0.025, 0.975)).tolist()
    return Interval(float(ratios[0]), low, high)


def _quantiles(rounds: Sequence[Floats], counts: npt.NDArray[np.int64], q: float) -> Floats:
    """The q-quantile for each row of counts (how often each round is drawn); nan where only empty rounds are."""
    values = np.concatenate(rounds)
    order = np.argsort(values, kind="stable")
    owner = np.repeat(np.arange(len(rounds)), [len(part) for part in rounds])[order]
    below = np.cumsum(counts[:, owner], axis=1)
    total = below[:, -1]
    index = np.argmax(below >= np.maximum(q * total, 1)[:, None], axis=1)
    return np.where(total > 0, values[order][index], np.nan)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: those ≤ α may be claimed with a chance ≤ α of any false one (Holm, 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, highest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = highest
    return adjusted


def holm_level(p_values: Sequence[float], alpha: float) -> float:
    """The level of Holm's last test: exactly the p-values ≤ this are claimed, and one more would have to be."""
    for rank, p in enumerate(sorted(p_values)):
        if p > (level := alpha / (len(p_values) - rank)):
            return level
    return alpha

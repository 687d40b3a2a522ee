"""Between which bounds does the mean of values in [0, 1] lie, at every look, where they vary little?"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

ALPHA = 0.05
_LOG = math.log(2.0 / ALPHA)
_HIGHEST_BET = 0.9


@dataclass(frozen=True, slots=True)
class RunningMean:
    """A 95 % confidence sequence that adapts to the variance of what it is fed.

    The predictable plug-in empirical-Bernstein sequence (Waudby-Smith & Ramdas, arXiv 2010.09686, Theorem 2):
    centre sum(l_i x_i) / sum(l_i), half width (ln(2/alpha) + sum(4 (x_i - m_(i-1))^2 psi(l_i))) / sum(l_i) with
    psi(l) = (-ln(1 - l) - l) / 4, where the bets l_i look only at values before i. It holds for every
    count at once with probability 0.95, for the bets' mean of the conditional means.
    """

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    """Sum of squared distances from the mean as it was known with each value."""
    bets: float = 0.0
    betted: float = 0.0
    """Sum of bet times value."""
    spread: float = 0.0

    def update(self, value: float) -> RunningMean:
        """With one more value, 0 to 1."""
        count, total = self.count + 1, self.total + value
        mean_before, mean = (0.5 + self.total) / count, (0.5 + total) / (count + 1)
        variance_before = (0.25 + self.squares) / count
        bet = min(math.sqrt(2.0 * _LOG / (variance_before * count * math.log1p(count))), _HIGHEST_BET)
        return RunningMean(
            count,
            total,
            self.squares + (value - mean) ** 2,
            self.bets + bet,
            self.betted + bet * value,
            self.spread - (value - mean_before) ** 2 * (math.log1p(-bet) + bet),
        )

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Within [0, 1]; None without values."""
        if not self.count:
            return None
        centre, half = self.betted / self.bets, (_LOG + self.spread) / self.bets
        return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True, slots=True)
class ClippedMean:
    """The same for values of either sign, of which only what lies within ± `span` is looked at."""

    span: float
    unit: RunningMean = field(default_factory=RunningMean)

    def update(self, value: float) -> ClippedMean:
        """With one more value, in the caller's unit."""
        within = min(max(value / self.span, -1.0), 1.0)
        return ClippedMean(self.span, self.unit.update((1.0 + within) / 2.0))

    @property
    def interval(self) -> tuple[float | None, float | None] | None:
        """Of the mean of the clipped values; None at an end where the clipping hides how far it goes."""
        bounds = self.unit.interval
        if bounds is None:
            return None
        lower, upper = bounds
        return (
            (2.0 * lower - 1.0) * self.span if lower > _EDGE else None,
            (2.0 * upper - 1.0) * self.span if upper < 1.0 - _EDGE else None,
        )


_EDGE = 1e-9

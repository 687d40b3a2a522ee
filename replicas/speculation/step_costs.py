"""What a step costs: seconds as a straight line over its size, learned from the steps that were run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Line:
    """`fixed + slope * size` seconds for a size above 0, and nothing for size 0. Neither term is negative."""

    fixed: float
    slope: float

    def at(self, size: int) -> float:
        return self.fixed + self.slope * size if size > 0 else 0.0


@dataclass(slots=True)
class LineFit:
    """Least squares with exponential forgetting, so that the line follows the present load.

    `forgetting` is the weight that one observation leaves to all earlier ones. With `steadiness` observations' worth
    of doubt the slope stays near 0 while all sizes were alike and nothing is known of it.
    """

    forgetting: float = 0.98
    steadiness: float = 1.0
    observations: int = field(default=0, init=False)
    _weight: float = field(default=0.0, init=False)
    _size: float = field(default=0.0, init=False)
    """Weighted mean of the sizes, as below of the seconds."""
    _seconds: float = field(default=0.0, init=False)
    _spread: float = field(default=0.0, init=False)
    """Weighted sum of squared deviations of the sizes."""
    _joint: float = field(default=0.0, init=False)

    def observe(self, size: int, seconds: float) -> None:
        """Learn from one step of size > 0 that took `seconds` (Welford's update, weighted)."""
        self.observations += 1
        self._weight = self._weight * self.forgetting + 1.0
        self._spread *= self.forgetting
        self._joint *= self.forgetting
        size_off = size - self._size
        self._size += size_off / self._weight
        self._seconds += (seconds - self._seconds) / self._weight
        self._spread += size_off * (size - self._size)
        self._joint += size_off * (seconds - self._seconds)

    def line(self) -> Line | None:
        """The present fit, or None before the first observation."""
        if self._weight == 0.0:
            return None
        slope = max(0.0, self._joint / (self._spread + self.steadiness))
        if slope * self._size > self._seconds:  # through the origin rather than below it
            slope = self._seconds / self._size
        return Line(self._seconds - slope * self._size, slope)


ENOUGH_DRAFTS = 3
"""Rounds from which a size of batch has a line of its own; one alone may be an outlier."""
SIZES = 24
"""Doublings of a batch that are told apart, more than any engine steps at once."""


class DraftCosts:
    """Seconds of drafting by depth, apart for batches of 1, 2, 3 to 4, 5 to 8, … sequences.

    A level costs more in a large batch: what was learned in one says little of another, and where nothing is drafted
    nothing would put it right.
    """

    def __init__(self) -> None:
        self._fits = tuple(LineFit() for _ in range(SIZES))

    def observe(self, batch: int, depth: int, seconds: float) -> None:
        self._of(batch).observe(depth, seconds)

    def line(self, batch: int) -> Line | None:
        """The present fit, or None where too little was drafted in batches of this size."""
        fit = self._of(batch)
        return fit.line() if fit.observations >= ENOUGH_DRAFTS else None

    def _of(self, batch: int) -> LineFit:
        return self._fits[min(SIZES - 1, max(0, batch - 1).bit_length())]

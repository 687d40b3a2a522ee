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
    _weight: float = field(default=0.0, init=False)
    _size: float = field(default=0.0, init=False)
    """Weighted mean of the sizes, as below of the seconds."""
    _seconds: float = field(default=0.0, init=False)
    _spread: float = field(default=0.0, init=False)
    """Weighted sum of squared deviations of the sizes."""
    _joint: float = field(default=0.0, init=False)

    def observe(self, size: int, seconds: float) -> None:
        """Learn from one step of size > 0 that took `seconds` (Welford's update, weighted)."""
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

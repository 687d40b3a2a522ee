"""How long may a round wait for the draft? A deadline learned from the rounds seen so far."""

from __future__ import annotations

from dataclasses import dataclass

MEAN_GAIN = 1 / 8
DEVIATION_GAIN = 1 / 4
DEVIATIONS = 4.0


@dataclass(slots=True)
class RoundTimer:
    """Smoothed mean and mean deviation of round times, as TCP keeps them (Jacobson 1988, appendix A; RFC 6298).

    All times are in seconds. Late rounds are samples too, or a slow draft would never be waited for.
    """

    floor: float
    ceiling: float
    mean: float | None = None
    deviation: float = 0.0

    def observe(self, seconds: float) -> None:
        if self.mean is None:
            self.mean, self.deviation = seconds, seconds / 2
            return
        self.deviation += DEVIATION_GAIN * (abs(seconds - self.mean) - self.deviation)
        self.mean += MEAN_GAIN * (seconds - self.mean)

    def budget(self) -> float:
        """The longest wait that is still normal: mean + 4 deviations within the bounds; at first the ceiling."""
        if self.mean is None:
            return self.ceiling
        return min(self.ceiling, max(self.floor, self.mean + DEVIATIONS * self.deviation))

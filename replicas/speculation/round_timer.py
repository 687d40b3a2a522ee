"""How long may a round wait for the draft? A deadline learned from the rounds seen so far."""

from __future__ import annotations

from dataclasses import dataclass

MEAN_GAIN = 1 / 8
DEVIATION_GAIN = 1 / 4
DEVIATIONS = 4.0
FIRST_ROUND_STEPS = 8.0
"""Steps of the target that a first round may take: a draft that needs longer brings nothing either way."""


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

    def budget(self, step_seconds: float | None) -> float:
        """The longest wait that is still normal, within the bounds: mean + 4 deviations.

        Before the first round it goes by the target's step, and where that is unknown too it is the ceiling.
        """
        if self.mean is not None:
            normal = self.mean + DEVIATIONS * self.deviation
        elif step_seconds is not None:
            normal = FIRST_ROUND_STEPS * step_seconds
        else:
            return self.ceiling
        return min(self.ceiling, max(self.floor, normal))

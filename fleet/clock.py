"""Time as an argument: a clock to read and deadlines to pass down."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Where a part gets its time from; tests bring one they can turn."""

    def monotonic(self) -> float:
        """Seconds that never go backwards; only differences mean anything."""

    def wall(self) -> float:
        """Seconds since the Unix epoch."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock by which something must have happened."""

    at: float

    @classmethod
    def after(cls, seconds: float, clock: Clock) -> Deadline:
        return cls(clock.monotonic() + seconds)

    def remaining(self, clock: Clock) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self.at - clock.monotonic())

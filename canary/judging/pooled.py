"""What do the judged windows of one arm add up to? A mean, and how much stands behind it."""

from __future__ import annotations

from dataclasses import dataclass

from canary.verdict import Reading


@dataclass(frozen=True, slots=True)
class Pooled:
    """Of this attempt's windows."""

    total: float = 0.0
    weight: float = 0.0
    """What the total is divided by: windows for a mean of shares, GPU-seconds for a rate."""
    count: int = 0
    """Things behind it, such as streams or requests."""

    def __add__(self, other: Pooled) -> Pooled:
        return Pooled(self.total + other.total, self.weight + other.weight, self.count + other.count)

    @property
    def mean(self) -> float | None:
        return self.total / self.weight if self.weight else None


def readings(stable: Pooled, canary: Pooled, unit: str, what: str = "") -> tuple[Reading, ...]:
    """Both arms' means, for `explain`."""
    return tuple(
        Reading(f"{name}{what}", arm.mean, unit, arm.count) for name, arm in (("stable", stable), ("canary", canary))
    )

"""What happened in one window of time? Routers' deltas become comparable windows, one tally per arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from canary.stats.binomial import Count
from fleet.traffic import Outcome, PathTally

_FAILURES = (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.TRUNCATED)


@dataclass(frozen=True, slots=True)
class Window:
    """Both arms over the same stretch of the controller's clock."""

    seconds: float
    canary_percent: float
    """The weight that was set when the window opened; known before any of its data."""
    stable: PathTally
    canary: PathTally
    canary_in_flight: int = 0
    """Streams open on the canary when the window closed."""


@dataclass(slots=True)
class OpenWindow:
    """The window that is being filled.

    A delta belongs to the window in which it arrives, so that no two machines' clocks are compared; both
    arms of a delta arrive together.
    """

    opened: float
    """Seconds on the rollout's clock."""
    canary_percent: float = 0.0
    tallies: dict[str, PathTally] = field(default_factory=dict)

    def add(self, compared: Mapping[str, PathTally]) -> None:
        for path, tally in compared.items():
            self.tallies.setdefault(path, PathTally()).merge(tally)

    def close(self, at: float, stable: str, canary: str, canary_in_flight: int) -> Window:
        return Window(
            at - self.opened,
            self.canary_percent,
            self.tallies.get(stable, PathTally()),
            self.tallies.get(canary, PathTally()),
            canary_in_flight,
        )

    def to_json(self) -> dict[str, Any]:
        tallies = {path: tally.to_json() for path, tally in self.tallies.items()}
        return {"opened": self.opened, "canary_percent": self.canary_percent, "tallies": tallies}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> OpenWindow:
        tallies = {str(path): PathTally.from_json(tally) for path, tally in value["tallies"].items()}
        return cls(float(value["opened"]), float(value["canary_percent"]), tallies)


def ended(tally: PathTally) -> int:
    """Requests whose fate is known; those shed before they reached a path say nothing about it."""
    return sum(count for outcome, count in tally.outcomes.items() if outcome != Outcome.SHED)


def failures(tally: PathTally) -> Count:
    """Requests that their path failed, of those that ended.

    A request that went on elsewhere failed on its own path, however well it ended. A client that leaves
    is no failure.
    """
    failed = sum(tally.outcomes.get(outcome, 0) for outcome in _FAILURES) + tally.fallbacks
    trials = ended(tally)
    return Count(min(failed, trials), trials)


def has_signal(tally: PathTally) -> bool:
    """Whether anything but assignments was heard of the arm."""
    return tally.itl.total > 0 or ended(tally) > 0

"""What happened in one window of time? Routers' deltas become comparable windows, one tally per arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from canary.stats.binomial import Count
from fleet.traffic import Outcome, PathTally, RouterReport

_FAILURES = (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.TRUNCATED)
_ANSWERS = (Outcome.DONE, Outcome.TRUNCATED, Outcome.FAILED)
"""Ends that the path itself brought about; whoever gave up waiting was not answered."""


@dataclass(frozen=True, slots=True)
class ArmUsage:
    """What was seen of one path's replicas and open requests in a window; everything it serves, compared or not."""

    looks: int = 0
    """How often the controller looked, about once a second."""
    samples: int = 0
    """Replicas seen, over all looks."""
    saturated: int = 0
    """Samples of a replica with a queue, or with at least 90 % of what it can run at once."""
    pressed: int = 0
    """Samples of a replica whose KV cache was fuller than the plan's `kv_pressure.above`."""
    gpus: float = 0.0
    """GPUs of ready replicas (replicas where they have none), summed over all looks."""
    completed: int = 0
    """Requests that ended well."""
    open_requests: int = 0
    """Compared requests that were open when the window closed."""

    def __add__(self, other: ArmUsage) -> ArmUsage:
        """Over both stretches; what is open is the later one's."""
        return ArmUsage(
            self.looks + other.looks,
            self.samples + other.samples,
            self.saturated + other.saturated,
            self.pressed + other.pressed,
            self.gpus + other.gpus,
            self.completed + other.completed,
            other.open_requests,
        )

    @property
    def mean_gpus(self) -> float:
        return self.gpus / self.looks if self.looks else 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """Both arms over the same stretch of the controller's clock."""

    seconds: float
    canary_percent: float
    """The weight that was set when the window opened; known before any of its data."""
    stable: PathTally
    canary: PathTally
    stable_usage: ArmUsage = ArmUsage()
    canary_usage: ArmUsage = ArmUsage()
    control: PathTally = field(default_factory=PathTally)
    """The part of `stable` whose users are a second sample of the same path, about as large as the canary's."""
    routers: tuple[str, ...] = ()
    """Living routers when the window closed."""


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
    control: dict[str, PathTally] = field(default_factory=dict)
    usage: dict[str, ArmUsage] = field(default_factory=dict)

    def add(self, report: RouterReport) -> None:
        """A router's delta: its compared requests, and what all of its requests say of a path's capacity."""
        for mine, theirs in ((self.tallies, report.compared), (self.control, report.control)):
            for path, tally in theirs.items():
                mine.setdefault(path, PathTally()).merge(tally)
        for path, tally in report.served.items():
            # What fell back was completed by another path.
            self.look(path, ArmUsage(completed=tally.outcomes.get(Outcome.DONE, 0) - tally.fallbacks))

    def look(self, path: str, usage: ArmUsage) -> None:
        """What a look at the path's replicas showed."""
        self.usage[path] = self.usage.get(path, ArmUsage()) + usage

    def close(self, at: float, stable: str, canary: str, fleet: AtClose) -> Window:
        return Window(
            at - self.opened,
            self.canary_percent,
            self.tallies.get(stable, PathTally()),
            self.tallies.get(canary, PathTally()),
            self.usage.get(stable, ArmUsage()) + ArmUsage(open_requests=fleet.open_requests.get(stable, 0)),
            self.usage.get(canary, ArmUsage()) + ArmUsage(open_requests=fleet.open_requests.get(canary, 0)),
            self.control.get(stable, PathTally()),
            fleet.routers,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "opened": self.opened,
            "canary_percent": self.canary_percent,
            "tallies": {path: tally.to_json() for path, tally in self.tallies.items()},
            "control": {path: tally.to_json() for path, tally in self.control.items()},
            "usage": {path: asdict(usage) for path, usage in self.usage.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> OpenWindow:
        tallies, control = (
            {str(path): PathTally.from_json(tally) for path, tally in value.get(name, {}).items()}
            for name in ("tallies", "control")
        )
        usage = {str(path): ArmUsage(**item) for path, item in value.get("usage", {}).items()}
        return cls(float(value["opened"]), float(value["canary_percent"]), tallies, control, usage)


@dataclass(frozen=True, slots=True)
class AtClose:
    """What is known of the fleet at the moment a window closes."""

    open_requests: Mapping[str, int] = field(default_factory=dict)
    """Compared requests, by assigned path."""
    routers: tuple[str, ...] = ()


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


def cancellations(tally: PathTally) -> Count:
    """Requests whose client left, of those that ended."""
    return Count(tally.outcomes.get(Outcome.CANCELLED, 0), ended(tally))


class Hearing(StrEnum):
    """What was heard of one arm in a window."""

    HEARD = "heard"
    """A token or an answer, whether or not any request ended."""
    WAITED_FOR = "waited_for"
    """It has requests, but none that waited from the window's beginning: too early to call it silent."""
    SILENT = "silent"
    """Requests waited when the window began and when it ended, and nothing came in between."""
    IDLE = "idle"
    """It has no requests."""


def hearing(tally: PathTally, open_requests: int) -> Hearing:
    """What a window heard of an arm that had so many requests open when it closed.

    What was open when it began follows from the rest: begun + assigned = open + ended.
    """
    if tally.output_tokens > 0 or any(tally.outcomes.get(outcome, 0) for outcome in _ANSWERS):
        return Hearing.HEARD
    if open_requests > 0 and open_requests + ended(tally) > tally.assigned:
        return Hearing.SILENT
    return Hearing.WAITED_FOR if tally.assigned or open_requests else Hearing.IDLE

"""What a guardrail answers: a level, the reason, and the numbers behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """Ordered: the worst of several wins. "Could not measure" is not "bad"."""

    PASS = 0
    INSUFFICIENT = 1
    NO_DATA = 2
    FAIL = 3

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Proof:
    """Evidence against "the canary is within its limit" (natural logarithms)."""

    log_e: float
    log_threshold: float

    @property
    def is_reached(self) -> bool:
        return self.log_e >= self.log_threshold

    @property
    def e_value(self) -> float:
        return math.exp(min(self.log_e, 700.0))

    @property
    def threshold(self) -> float:
        return math.exp(min(self.log_threshold, 700.0))


@dataclass(frozen=True, slots=True)
class Need:
    """What is still missing for a verdict."""

    samples: int = 0
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """One number behind a verdict, of an arm or of a kind of request."""

    name: str
    value: float | None
    unit: str
    samples: int
    limit: float | None = None


Bounds = tuple[float | None, float | None]
"""None at an end means unbounded."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One guardrail's answer; estimate, interval and limit are fractions (0.12 = 12 %), seconds or counts."""

    guardrail: str
    level: Level
    reason: str
    unit: str
    estimate: float | None = None
    interval: Bounds | None = None
    limit: float | None = None
    proof: Proof | None = None
    samples: int = 0
    need: Need | None = None
    trip_seconds: float | None = None
    """When the guardrail will trip if the evidence keeps growing as it has; None where it does not grow."""
    readings: tuple[Reading, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """What is asked of the evidence at the present point of the rollout."""

    windows_needed: int
    requests_needed: int
    window_seconds: float
    request_seconds: float | None
    """Seconds per canary request at the present rate; None while there is none."""
    needs_proof: bool = False
    """The canary must have been shown to be no worse, not merely failed to look worse."""
    has_baseline: bool = True
    is_promoted: bool = False
    is_before_last: bool = False
    """The last step in which much of the traffic still serves as a baseline."""

    def need(self, *, windows: int = 0, requests: int = 0) -> Need:
        """What is missing when so many windows and so many canary requests have been seen."""
        more_requests = max(0, self.requests_needed - requests)
        wait = max(0, self.windows_needed - windows) * self.window_seconds
        if more_requests and self.request_seconds is None:
            return Need(more_requests, None)
        return Need(more_requests, max(wait, more_requests * (self.request_seconds or 0.0)))


def worst(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The verdict that decides, or None without any."""
    return max(verdicts, key=lambda verdict: verdict.level, default=None)

"""What can happen to a rollout: past facts, each with its moment on the rollout's clock, and the one order it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from canary.windows import Window
from fleet.traffic import HardTrip


@dataclass(frozen=True, slots=True)
class RolloutStarted:
    """An operator handed in a plan that fits the fleet."""

    verb: ClassVar[str] = "start"
    at: float
    """Seconds on the rollout's clock, which stands still while no controller runs; so for every event."""
    rollout_id: str
    plan: Mapping[str, Any]
    """As given; `canary.plan.read_plan` reads it."""


@dataclass(frozen=True, slots=True)
class CapacityChanged:
    """Canary replicas came or went."""

    verb: ClassVar[str] = "change capacity"
    at: float
    ready: int
    wanted: int


@dataclass(frozen=True, slots=True)
class SplitApplied:
    """Every live router routes by the present split."""

    verb: ClassVar[str] = "apply a split"
    at: float
    version: int
    routers: int
    seconds: float
    """Since the split was decided."""


@dataclass(frozen=True, slots=True)
class WindowClosed:
    """A window of traffic is complete."""

    verb: ClassVar[str] = "close a window"
    at: float
    window: Window


@dataclass(frozen=True, slots=True)
class HardTripped:
    """Something happened that needs no statistics."""

    verb: ClassVar[str] = "trip"
    at: float
    trip: HardTrip


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; kept in the journal only where that changed something."""

    verb: ClassVar[str] = "tick"
    at: float


@dataclass(frozen=True, slots=True)
class OperatorPaused:
    verb: ClassVar[str] = "pause"
    at: float


@dataclass(frozen=True, slots=True)
class OperatorResumed:
    verb: ClassVar[str] = "resume"
    at: float


@dataclass(frozen=True, slots=True)
class OperatorPromoted:
    """To the next step, or with `full` to the end."""

    verb: ClassVar[str] = "promote"
    at: float
    full: bool


BY_CONTROLLER = "the controller"


@dataclass(frozen=True, slots=True)
class OperatorAborted:
    """By a person; or by the controller, where the fleet no longer is what the plan was made for."""

    verb: ClassVar[str] = "abort"
    at: float
    reason: str
    by: str = ""
    """Who; empty where they did not say."""


@dataclass(frozen=True, slots=True)
class OperatorSetWeight:
    verb: ClassVar[str] = "set-weight"
    at: float
    percent: float


@dataclass(frozen=True, slots=True)
class OperatorRetried:
    verb: ClassVar[str] = "retry"
    at: float


OPERATORS = (
    OperatorPaused,
    OperatorResumed,
    OperatorPromoted,
    OperatorAborted,
    OperatorSetWeight,
    OperatorRetried,
)
"""The kinds that a command makes."""

Event = (
    CapacityChanged
    | SplitApplied
    | WindowClosed
    | HardTripped
    | Ticked
    | OperatorPaused
    | OperatorResumed
    | OperatorPromoted
    | OperatorAborted
    | OperatorSetWeight
    | OperatorRetried
)


@dataclass(frozen=True, slots=True)
class SetSplit:
    """Order: route like this from now on. Safe to repeat."""

    stable: str
    canary: str | None
    percent: float

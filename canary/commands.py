"""What does an operator's command ask for? Names and arguments become events, or a refusal that says what to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from canary.events import (
    Event,
    OperatorAborted,
    OperatorPaused,
    OperatorPromoted,
    OperatorResumed,
    OperatorRetried,
    OperatorSetWeight,
)
from canary.rollout_state import Rollout
from fleet.errors import BadRequest

LONGEST_REASON = 500
OTHERS = ("explain", "history", "export", "lint", "list", "overview", "calibrated")
"""Commands that move no rollout."""


def event_for(name: str, arguments: Mapping[str, Any], at: float) -> Event | None:
    """The event that a command amounts to, or None where it is not one that moves a rollout."""
    make = _MAKERS.get(name)
    return None if make is None else make(arguments, at)


def confirmation(event: Event, after: Rollout) -> str:
    """One line for the operator."""
    name = f"rollout '{after.id}'"
    match event:
        case OperatorPaused():
            return f"{name} paused at {after.weight:g} %"
        case OperatorResumed():
            return f"{name} resumed: {after.state}, {after.reason}"
        case OperatorPromoted(full=True):
            return f"{name} fully promoted"
        case OperatorPromoted():
            return f"{name} promoted: {after.reason}"
        case OperatorAborted():
            return f"{name} aborted"
        case OperatorRetried():
            return f"{name} retried: attempt {after.attempt}"
        case OperatorSetWeight():
            return f"{name} paused with weight set to {after.weight:g} %"
        case _:
            return f"{name} {after.state}"


def known() -> tuple[str, ...]:
    return ("start", *_MAKERS, *OTHERS)


def text(arguments: Mapping[str, Any], name: str) -> str:
    """A text argument, empty when it is absent."""
    value = arguments.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > LONGEST_REASON:
        raise BadRequest(f"{name} must be a text of at most {LONGEST_REASON} characters", param=name)
    return value


def flag(arguments: Mapping[str, Any], name: str) -> bool:
    """A yes or no, no when it is absent."""
    value = arguments.get(name, False)
    if not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false", param=name)
    return value


def count(arguments: Mapping[str, Any], name: str, default: int, least: int = 1) -> int:
    """A whole number of at least `least`."""
    value = arguments.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadRequest(f"{name} must be a whole number of at least {least}", param=name)
    return value


def number(arguments: Mapping[str, Any], name: str) -> float:
    """A number from 0 on, 0 when it is absent."""
    value = arguments.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadRequest(f"{name} must be a number of at least 0", param=name)
    return float(value)


def choice(arguments: Mapping[str, Any], name: str, among: Collection[str]) -> str:
    """One of several words, the first when it is absent."""
    value = arguments.get(name, next(iter(among)))
    if not isinstance(value, str) or value not in among:
        raise BadRequest(f"{name} must be one of {', '.join(among)}", param=name)
    return value


def plan_in(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The plan as it was given."""
    value = arguments.get("plan")
    if not isinstance(value, Mapping):
        raise BadRequest("plan must be given, as a mapping", param="plan")
    return value


def _weight(arguments: Mapping[str, Any]) -> float:
    value = arguments.get("weight")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise BadRequest("weight must be a number from 0 to 100", param="weight")
    return float(value)


_MAKERS: Mapping[str, Callable[[Mapping[str, Any], float], Event]] = {
    "pause": lambda _, at: OperatorPaused(at),
    "resume": lambda _, at: OperatorResumed(at),
    "promote": lambda arguments, at: OperatorPromoted(at, flag(arguments, "full")),
    "abort": lambda arguments, at: OperatorAborted(at, text(arguments, "reason"), text(arguments, "by")),
    "retry": lambda _, at: OperatorRetried(at),
    "set-weight": lambda arguments, at: OperatorSetWeight(at, _weight(arguments)),
}

"""How is an event told to people? One line for the journal, with the numbers that mattered."""

from __future__ import annotations

from canary.events import (
    CapacityChanged,
    Event,
    HardTripped,
    OperatorAborted,
    OperatorPaused,
    OperatorPromoted,
    OperatorResumed,
    OperatorRetried,
    OperatorSetWeight,
    RolloutStarted,
    SplitApplied,
    Ticked,
    WindowClosed,
)
from canary.rollout_state import Rollout, State, verdicts_of
from canary.verdict import Level, Verdict, worst
from canary.windows import Window, ended


def tell(before: Rollout | None, event: RolloutStarted | Event, after: Rollout) -> str:
    """What happened and what became of it."""
    told = _event(event, after)
    if before is None or _standing(before) != _standing(after):
        told = f"{told}: {_arrival(after)}" if told else _arrival(after)
    if before is not None and before.weight != after.weight:
        told += f"; weight {before.weight:g} % -> {after.weight:g} %"
    return told


def _standing(rollout: Rollout) -> tuple[State, int, int, bool]:
    """What is told anew whenever it changes."""
    return rollout.state, rollout.step, rollout.attempt, rollout.is_kept


def _event(event: RolloutStarted | Event, after: Rollout) -> str:
    match event:
        case RolloutStarted():
            weights = " -> ".join(f"{step.weight:g}" for step in after.plan.steps)
            return f"started from '{after.plan.stable}' to '{after.plan.canary}' over {weights} %"
        case CapacityChanged():
            return f"{event.ready} of {event.wanted} canary replicas ready"
        case SplitApplied():
            return f"all {event.routers} routers follow split {event.version} after {event.seconds:.2f} s"
        case WindowClosed():
            return _window(event.window, verdicts_of(after))
        case HardTripped():
            return f"hard trip {event.trip.kind} on '{event.trip.path}': {event.trip.detail}"
        case Ticked() | OperatorAborted():
            return ""  # the state that it led to says all
        case OperatorPaused() | OperatorResumed() | OperatorRetried():
            return f"operator: {event.verb}"
        case OperatorPromoted():
            return f"operator: promote{' --full' if event.full else ''}"
        case OperatorSetWeight():
            return f"operator: set-weight {event.percent:g}"


def _arrival(after: Rollout) -> str:
    told = f"{after.state} ({after.reason})"
    if after.state != State.ROLLED_BACK:
        return told
    decisive = worst(verdicts_of(after))
    return told if decisive is None else f"{told}{_numbers(decisive)}"


def _numbers(verdict: Verdict) -> str:
    parts = []
    if verdict.estimate is not None and verdict.proof is not None:
        parts.append(f"estimate {_amount(verdict.estimate, verdict.unit)}")
    if verdict.interval is not None:
        lower, upper = (None if end is None else _amount(end, verdict.unit) for end in verdict.interval)
        parts.append(f"interval {lower or '-inf'} to {upper or 'inf'}")
    if verdict.proof is not None:
        parts.append(f"evidence {verdict.proof.e_value:.3g} of {verdict.proof.threshold:.3g}")
        parts.append(f"{verdict.samples} canary requests")
    return f" [{', '.join(parts)}]" if parts else ""


def _amount(value: float, unit: str) -> str:
    match unit:
        case "percent":
            return f"{value * 100:+.1f} %"
        case "points":
            return f"{value * 100:+.2f} pp"
        case _:
            return f"{value:.3f}"


def _window(window: Window, verdicts: tuple[Verdict, ...]) -> str:
    decisive = worst(verdicts)
    level = ""
    if decisive is not None and decisive.level < Level.FAIL:
        level = f", {decisive.level.label}: {decisive.guardrail}: {decisive.reason}"
    return f"window of {window.seconds:.1f} s: {ended(window.canary)} canary, {ended(window.stable)} stable{level}"

"""What did A/A rollouts show of a plan? The latest calibrations, and what they say of its going on by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from canary.plan import Plan
from fleet.config import explain
from fleet.errors import BadRequest

JUDGED = ("stable", "eligible", "steps", "holdback", "alpha", "guardrails", "warmup_windows")
"""Fields of a plan on which its rate of false rollbacks depends, beside the length of its window."""
KEPT = 20
"""Calibrations of so many plans are remembered, the newest ones."""
FRESH_SECONDS = 7 * 86_400.0
"""Traffic changes: what is older warns, and forbids nothing."""
ALIKE = 2.0**0.5
"""Windows of up to this ratio count as the same length: those that are tried double each time."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A/A rollouts with one length of the window."""

    window_seconds: float
    runs: int
    rollbacks: int
    lower: float
    """One-sided 95 % bounds of the rate of false rollbacks."""
    upper: float


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What `fleet canary aa` found, and of what."""

    at: float
    """Seconds since the Unix epoch."""
    rollout: str
    """Whose record was judged."""
    judged: Mapping[str, Any]
    """The plan's `JUDGED` fields."""
    tried: tuple[Tried, ...]
    chosen_seconds: float | None
    """The shortest window that was found fit."""
    untried: tuple[str, ...] = ()
    """Guardrails that the record said nothing of."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Whether a plan may act by itself, as far as that is known."""

    refusal: str | None = None
    caution: str | None = None


_TRIED = TypeAdapter(tuple[Tried, ...])
_CALIBRATED = TypeAdapter(Calibrated)


def judged_fields(plan: Plan) -> dict[str, Any]:
    """JSON-ready."""
    return plan.model_dump(mode="json", include=set(JUDGED))


def read_calibration(plan: Plan, rollout: str, answer: Mapping[str, Any], at: float) -> Calibrated:
    """From what the command line sends. Raises BadRequest."""
    try:
        tried = _TRIED.validate_python(answer.get("tried"))
        chosen = TypeAdapter(float | None).validate_python(answer.get("chosen_seconds"))
        untried = TypeAdapter(tuple[str, ...]).validate_python(answer.get("untried", ()))
    except ValidationError as error:
        raise BadRequest(f"no calibration: {explain(error)}", param="tried") from error
    return Calibrated(at, rollout, judged_fields(plan), tried, chosen, untried)


def with_newest(kept: Sequence[Calibrated], newest: Calibrated) -> tuple[Calibrated, ...]:
    """Oldest first; a plan's calibration takes the place of its last one."""
    others = [item for item in kept if item.judged != newest.judged]
    return (*others, newest)[-KEPT:]


def written(kept: Sequence[Calibrated]) -> list[Any]:
    """JSON-ready."""
    return [_CALIBRATED.dump_python(item, mode="json") for item in kept]


def recalled(values: Sequence[Any]) -> tuple[Calibrated, ...]:
    """What `written` wrote."""
    return tuple(_CALIBRATED.validate_python(value) for value in values)


def advise(plan: Plan, kept: Sequence[Calibrated], now: float) -> Advice:
    """What the latest calibration of this plan says; `now` is in seconds since the Unix epoch."""
    wanted = judged_fields(plan)
    last = next((item for item in reversed(kept) if item.judged == wanted), None)
    if last is None:
        return Advice(caution=_unknown(wanted, kept))
    age = now - last.at
    if age > FRESH_SECONDS:
        return Advice(caution=f"the last A/A calibration of this plan is {age / 86_400:.0f} days old: run it again")
    advice = _of_window(plan, last)
    if advice.refusal is not None or not last.untried:
        return advice
    told = f"A/A rollouts did not try {', '.join(last.untried)}: nothing in the record of '{last.rollout}' speaks of it"
    return Advice(caution=told if advice.caution is None else f"{advice.caution}; {told}")


def _unknown(wanted: Mapping[str, Any], kept: Sequence[Calibrated]) -> str:
    hint = "`fleet canary aa` judges recorded traffic and tells whether the judge may act alone"
    if not kept:
        return f"no A/A calibration yet: {hint}"
    other = [field for field in JUDGED if kept[-1].judged.get(field) != wanted[field]]
    return f"the last A/A calibration was of a plan with other {', '.join(other)}: {hint}"


def _of_window(plan: Plan, last: Calibrated) -> Advice:
    near = [item for item in last.tried if 1.0 / ALIKE <= item.window_seconds / plan.window <= ALIKE]
    is_longer = last.chosen_seconds is not None and plan.window >= last.chosen_seconds
    if not near:
        lengths = ", ".join(f"{item.window_seconds:g}s" for item in last.tried)
        told = f"A/A rollouts were judged with windows of {lengths}, not of {plan.window:g}s"
        return Advice() if is_longer else Advice(caution=told)
    found = min(near, key=lambda item: abs(item.window_seconds - plan.window))
    seen = (
        f"{found.rollbacks} of {found.runs} A/A rollouts of '{last.rollout}' were taken back with windows of "
        f"{found.window_seconds:g}s ({found.lower:.1%} to {found.upper:.1%})"
    )
    if found.lower > plan.alpha:
        return Advice(refusal=f"{seen}, more than alpha {plan.alpha:.1%}: {_way_out(last)}")
    return Advice() if found.upper <= plan.alpha else Advice(caution=f"{seen}; whether that is too many is not known")


def _way_out(last: Calibrated) -> str:
    manual = "start it with --manual and decide yourself"
    if last.chosen_seconds is None:
        return f"no window that was tried is fit: loosen the limits that trip, bake longer, or {manual}"
    return f"set window: {last.chosen_seconds:g}s, or {manual}"

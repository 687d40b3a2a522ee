"""Is the canary within its limits? Evidence grows window by window; `judge` answers for every guardrail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from canary.judging import acceptance, errors, latency
from canary.plan import Plan
from canary.verdict import Level, Proof, Stage, Verdict, worst
from canary.windows import Window, ended, has_signal
from fleet.traffic import HardTrip, HardTripKind

__all__ = ["Evidence", "Level", "Proof", "Signal", "Stage", "Verdict", "judge", "observe", "worst"]


class Signal(StrEnum):
    """What the last window brought."""

    SEEN = "seen"
    CANARY_SILENT = "canary_silent"
    """Canary requests wait and nothing is heard of them, while stable is heard or has no requests."""
    ALL_SILENT = "all_silent"
    """Nothing at all: no traffic, or no routers. Moving traffic now would be moving it blind."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything an attempt has shown so far; immutable, so that a replay cannot differ."""

    latency: latency.LatencyEvidence | None
    errors: errors.ErrorEvidence | None
    acceptance: acceptance.AcceptanceEvidence | None
    trip: HardTrip | None = None
    signal: Signal = Signal.SEEN
    canary_waiting: int = 0
    """Canary requests that were waiting for an answer at the end of the last window."""
    to_skip: int = 0
    """Windows that latency still has to ignore after a change of weight."""
    assigned: tuple[int, int] = (0, 0)
    """Stable's and the canary's requests in closed windows since the weight last changed."""
    step_windows: int = 0
    step_seconds: float = 0.0
    step_requests: tuple[int, int] = (0, 0)
    """Stable's and the canary's requests that ended in this step."""

    @classmethod
    def start(cls, plan: Plan) -> Evidence:
        """Fresh evidence of a new attempt."""
        rails = plan.guardrails
        share = _share(plan)
        drop = rails.acceptance
        reference = None if drop is None or drop.reference == "calibrate" else drop.reference
        return cls(
            latency=latency.LatencyEvidence.start(rails.itl_p95.max_increase, share) if rails.itl_p95 else None,
            errors=errors.ErrorEvidence.start(rails.error_rate.max_increase, share) if rails.error_rate else None,
            acceptance=acceptance.AcceptanceEvidence.start(drop.max_decrease, reference) if drop else None,
        )

    def next_step(self, plan: Plan) -> Evidence:
        """A new step counts anew and stakes its own share of the capital; evidence so far is kept."""
        return replace(
            self,
            latency=_map(self.latency, lambda item: item.next_step(_share(plan))),
            errors=_map(self.errors, lambda item: item.next_step(_share(plan))),
            acceptance=_map(self.acceptance, lambda item: item.next_step()),
            step_windows=0,
            step_seconds=0.0,
            step_requests=(0, 0),
        )

    def reweighted(self, plan: Plan) -> Evidence:
        """The weight has changed: the open window mixes two weights, and the next ones are warm-up."""
        return replace(self, to_skip=plan.warmup_windows + 1, assigned=(0, 0))

    def is_mixed(self, plan: Plan) -> bool:
        """Whether the open window has seen two weights."""
        return self.to_skip > plan.warmup_windows

    @property
    def seconds_per_request(self) -> float | None:
        """Of the canary in this step; None before its first request ended."""
        return self.step_seconds / self.step_requests[1] if self.step_requests[1] else None


def observe(evidence: Evidence, plan: Plan, window: Window, *, is_promoted: bool) -> Evidence:
    """What is known after one more window."""
    is_steady, is_mixed = evidence.to_skip == 0, evidence.is_mixed(plan)
    stable_ended, canary_ended = ended(window.stable), ended(window.canary)
    return replace(
        evidence,
        latency=_map(
            evidence.latency,
            lambda item: latency.observe(item, window, is_promoted=is_promoted) if is_steady else item,
        ),
        errors=_map(evidence.errors, lambda item: errors.observe(item, window, is_promoted=is_promoted)),
        acceptance=_map(evidence.acceptance, lambda item: acceptance.observe(item, window)),
        signal=_signal(window, evidence.signal),
        canary_waiting=max(window.canary.assigned, window.canary_in_flight),
        to_skip=max(0, evidence.to_skip - 1),
        assigned=evidence.assigned if is_mixed else _added(evidence.assigned, window),
        step_windows=evidence.step_windows + is_steady,
        step_seconds=evidence.step_seconds + window.seconds,
        step_requests=(evidence.step_requests[0] + stable_ended, evidence.step_requests[1] + canary_ended),
    )


def _added(assigned: tuple[int, int], window: Window) -> tuple[int, int]:
    return assigned[0] + window.stable.assigned, assigned[1] + window.canary.assigned


def _signal(window: Window, before: Signal) -> Signal:
    if has_signal(window.canary):
        return Signal.SEEN
    is_waiting = window.canary.assigned > 0 or (before == Signal.CANARY_SILENT and window.canary_in_flight > 0)
    # Stable without requests of its own has nothing to be heard of, as at 100 %: that excuses nobody.
    if is_waiting and (has_signal(window.stable) or not window.stable.assigned):
        return Signal.CANARY_SILENT
    return Signal.SEEN if has_signal(window.stable) else Signal.ALL_SILENT


def judge(evidence: Evidence, plan: Plan, stage: Stage) -> tuple[Verdict, ...]:
    """One verdict per guardrail of the plan, hard ones and the signal included."""
    found = [_hard(evidence, kind) for kind in HardTripKind]
    found.append(_heard(evidence, plan))
    alpha, horizon = plan.alpha_each, plan.planned_windows
    if evidence.latency:
        found.append(latency.judge(evidence.latency, stage, alpha=alpha, alpha_total=plan.alpha, horizon=horizon))
    if evidence.errors:
        found.append(errors.judge(evidence.errors, stage, alpha=alpha, horizon=horizon))
    if evidence.acceptance:
        found.append(acceptance.judge(evidence.acceptance, stage, alpha=alpha, horizon=horizon))
    return tuple(found)


def _hard(evidence: Evidence, kind: HardTripKind) -> Verdict:
    trip = evidence.trip
    if trip is None or trip.kind != kind:
        return Verdict(kind.value, Level.PASS, "none seen", "count", estimate=0.0, limit=0.0)
    return Verdict(kind.value, Level.FAIL, trip.detail, "count", estimate=1.0, limit=0.0, samples=1)


def _heard(evidence: Evidence, plan: Plan) -> Verdict:
    match evidence.signal:
        case Signal.SEEN:
            return Verdict("signal", Level.PASS, "both arms are heard of", "count")
        case Signal.CANARY_SILENT:
            what = f"{evidence.canary_waiting} canary requests wait and nothing is heard of them"
            return Verdict("signal", Level.NO_DATA, what, "count")
        case Signal.ALL_SILENT:
            return Verdict("signal", Level.NO_DATA, "nothing is heard of either path", "count")


def _share(plan: Plan) -> float:
    """Of the capital, for each step in which the arms can be compared."""
    compared = [step for step in plan.steps if step.bake > 0 and (step.weight < 100 or plan.holdback > 0)]
    return 1.0 / max(1, len(compared))


_T = TypeVar("_T")


def _map(item: _T | None, change: Callable[[_T], _T]) -> _T | None:
    return None if item is None else change(item)

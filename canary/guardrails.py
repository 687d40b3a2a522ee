"""Is the canary within its limits? Evidence grows window by window; `judge` answers for every guardrail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from canary.judging.acceptance import AcceptanceRail
from canary.judging.accusation import Budget, Moment
from canary.judging.quantile import QuantileRail
from canary.judging.rate import RateRail
from canary.judging.share import MEASURES as SHARE_MEASURES
from canary.judging.share import ShareRail
from canary.judging.slo import SloRail
from canary.judging.split import SplitRail
from canary.judging.throughput import ThroughputRail
from canary.limits import AcceptanceDrop, GapSlo, Increase, PeakThroughput, QueueDelay
from canary.plan import Plan
from canary.verdict import Level, Need, Stage, Verdict
from canary.windows import Hearing, Window, ended, hearing
from fleet.traffic import HardTrip, HardTripKind

Rail = QuantileRail | SloRail | ShareRail | RateRail | ThroughputRail | AcceptanceRail | SplitRail
"""The state of one guardrail. Each can observe a window, go to the next step, show its proof and judge."""


class Signal(StrEnum):
    """What the last window brought."""

    SEEN = "seen"
    CANARY_SILENT = "canary_silent"
    """Canary requests have waited for a whole window, while stable is heard or has no requests."""
    ALL_SILENT = "all_silent"
    """Nothing of either path: no traffic, no routers, or no answers. Moving traffic now would be moving it blind."""
    MISROUTED = "misrouted"
    """The routers do not give the canary what was set: what is compared is not what was meant. Never goes away."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything an attempt has shown so far; immutable, so that a replay cannot differ."""

    rails: tuple[Rail, ...]
    """Of the statistical guardrails, in the order of the plan's fields."""
    trip: HardTrip | None = None
    signal: Signal = Signal.SEEN
    canary_waiting: int = 0
    """Canary requests that were open at the end of the last window."""
    to_skip: int = 0
    """Windows that latency still has to ignore after a change of weight."""
    assigned: tuple[int, int] = (0, 0)
    """Stable's and the canary's requests in closed windows since the weight last changed."""
    step_windows: int = 0
    """Steady windows of this step in which the canary was heard."""
    step_seconds: float = 0.0
    step_requests: tuple[int, int] = (0, 0)
    """Stable's and the canary's requests that ended in this step."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Guardrails that have failed, with their reasons then: evidence that sufficed once is a proof, and stays one
    whatever comes after (the maximum of an e-process keeps Ville's bound)."""

    @classmethod
    def start(cls, plan: Plan) -> Evidence:
        """Fresh evidence of a new attempt."""
        return cls(tuple(_rails(plan)))

    def next_step(self, plan: Plan) -> Evidence:
        """A new step counts anew and stakes its own share of the capital; evidence so far is kept."""
        share = plan.capital_each
        return replace(
            self,
            rails=tuple(rail.next_step(share) for rail in self.rails),
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
    moment = Moment(is_promoted, evidence.to_skip == 0)
    stable_ended, canary_ended = ended(window.stable), ended(window.canary)
    rails = tuple(rail.observe(window, moment) for rail in evidence.rails)
    heard, of_canary = _signal(window), hearing(window.canary, window.canary_usage.open_requests)
    is_misrouted = any(isinstance(rail, SplitRail) and rail.has_tripped for rail in rails)
    return replace(
        evidence,
        rails=rails,
        signal=Signal.MISROUTED if is_misrouted and heard != Signal.CANARY_SILENT else heard,
        canary_waiting=window.canary_usage.open_requests,
        to_skip=max(0, evidence.to_skip - 1),
        assigned=evidence.assigned if evidence.is_mixed(plan) else _added(evidence.assigned, window),
        step_windows=evidence.step_windows + (moment.is_steady and of_canary == Hearing.HEARD),
        step_seconds=evidence.step_seconds + window.seconds,
        step_requests=(evidence.step_requests[0] + stable_ended, evidence.step_requests[1] + canary_ended),
    )


def _added(assigned: tuple[int, int], window: Window) -> tuple[int, int]:
    return assigned[0] + window.stable.assigned, assigned[1] + window.canary.assigned


def _signal(window: Window) -> Signal:
    canary = hearing(window.canary, window.canary_usage.open_requests)
    stable = hearing(window.stable, window.stable_usage.open_requests)
    # Stable without requests of its own has nothing to be heard of, as at 100 %: that excuses nobody.
    if canary == Hearing.SILENT and stable in (Hearing.HEARD, Hearing.IDLE):
        return Signal.CANARY_SILENT
    if Hearing.HEARD in (canary, stable):
        return Signal.SEEN
    is_too_early = Hearing.WAITED_FOR in (canary, stable) and Hearing.SILENT not in (canary, stable)
    return Signal.SEEN if is_too_early else Signal.ALL_SILENT


def judge(evidence: Evidence, plan: Plan, stage: Stage) -> tuple[Verdict, ...]:
    """One verdict per guardrail of the plan, hard ones and the signal included."""
    found = [_hard(evidence, kind) for kind in HardTripKind]
    found.append(_heard(evidence, plan))
    budget = budget_of(plan)
    found += [_latched(rail.judge(stage, budget), evidence.failed) for rail in evidence.rails]
    return tuple(found)


def _latched(verdict: Verdict, failed: Mapping[str, str]) -> Verdict:
    if verdict.level == Level.FAIL or verdict.guardrail not in failed:
        return verdict
    reason = f"{failed[verdict.guardrail]}; proven before, and that stays until a retry"
    return replace(verdict, level=Level.FAIL, reason=reason, need=Need(), trip_seconds=None)


def budget_of(plan: Plan) -> Budget:
    """What each statistical guardrail may spend."""
    return Budget(plan.alpha_each, plan.alpha, plan.watch_share)


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
        case Signal.MISROUTED:
            return Verdict("signal", Level.NO_DATA, "what is heard cannot be compared: see realised_split", "count")


def _rails(plan: Plan) -> Iterator[Rail]:
    limits, share = plan.guardrails, plan.capital_each
    for name in limits.statistical:
        limit = getattr(limits, name)
        match limit:
            case AcceptanceDrop():
                yield AcceptanceRail.start(limit, plan.alpha_each)
            case GapSlo():
                yield SloRail.start(limit.max, share)
            case PeakThroughput():
                yield ThroughputRail.start(limit.max_decrease, limit.min_windows, share)
            case Increase() | QueueDelay():
                yield QuantileRail.start(name, limit.max_increase, share)
            case _ if name in SHARE_MEASURES:
                yield ShareRail.start(name, limit.max_increase, share)
            case _:
                yield RateRail.start(name, limit.max_increase, share)
    yield SplitRail.start()

"""Where does a rollout stand, what split does it want, and what is asked of its evidence?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from canary.events import RolloutStarted, SetSplit
from canary.guardrails import Evidence, judge
from canary.plan import Plan, read_plan
from canary.verdict import Level, Stage, Verdict, worst


class State(StrEnum):
    """Where a rollout stands."""

    PREPARING = "preparing"
    """Waiting for canary replicas; no traffic yet."""
    BAKING = "baking"
    """At a step's weight, its clock running."""
    PAUSED = "paused"
    """By an operator: the weight stays, the clock stands, guardrails act."""
    HOLDING = "holding"
    """By itself: no data, too few ready canary replicas for the step's weight, or in manual mode a failure."""
    PROMOTED = "promoted"
    """The canary holds the traffic; with a holdback it is still judged and can still be taken back."""
    ROLLED_BACK = "rolled_back"
    ABORTED = "aborted"


OVER = frozenset({State.PROMOTED, State.ROLLED_BACK, State.ABORTED})


@dataclass(frozen=True, slots=True)
class Capacity:
    """Canary replicas."""

    ready: int = 0
    wanted: int = 1

    @property
    def percent(self) -> float:
        """The most traffic they may get: a path with half of its replicas is sized for half of it."""
        return min(100.0, 100.0 * self.ready / max(1, self.wanted))


@dataclass(frozen=True, slots=True)
class Rollout:
    """A plan being carried out."""

    id: str
    plan: Plan
    evidence: Evidence
    state: State = State.PREPARING
    reason: str = "waiting for canary replicas"
    attempt: int = 1
    step: int = 0
    """Index into plan.steps."""
    capacity: Capacity = Capacity()
    override: float | None = None
    """An operator's weight; only while paused."""
    is_applied: bool = True
    """Every live router routes by the present split."""
    baked: float = 0.0
    """Seconds of this step's bake before `baking_since`."""
    baking_since: float | None = None
    silent_since: float | None = None
    """Since when canary requests are open and nothing is heard of them."""
    is_kept: bool = False
    """Promoted, and an operator has ended the holdback."""

    @property
    def target(self) -> float:
        """Percent that the state asks for."""
        match self.state:
            case State.PREPARING | State.ROLLED_BACK | State.ABORTED:
                return 0.0
            case State.PROMOTED:
                return 100.0 if self.is_kept else 100.0 - self.plan.holdback
            case _:
                return step_weight(self.plan, self.step) if self.override is None else self.override

    @property
    def weight(self) -> float:
        """Percent that the split gives to the canary: the target, but never more than is ready to take it."""
        return self.target if self.is_final else min(self.target, self.capacity.percent)

    @property
    def is_final(self) -> bool:
        """Promoted without a holdback, or past it, for all requests: the canary's path has become the stable one."""
        is_whole = self.is_kept or self.plan.holdback == 0
        return self.state == State.PROMOTED and is_whole and not self.plan.is_partial

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def is_judged(self) -> bool:
        """Whether windows still count."""
        return not self.is_over or (self.state == State.PROMOTED and not self.is_final)

    def elapsed(self, at: float) -> float:
        """Seconds that this step has baked."""
        return self.baked + (at - self.baking_since if self.baking_since is not None else 0.0)


def step_weight(plan: Plan, step: int) -> float:
    """Percent of a step, less what the holdback keeps on stable."""
    return min(plan.steps[step].weight, 100.0 - plan.holdback)


def split_of(rollout: Rollout) -> SetSplit:
    """How a rollout wants traffic to be routed."""
    if rollout.is_final:
        return SetSplit(rollout.plan.canary, None, 0.0)
    if rollout.state in (State.PREPARING, State.ROLLED_BACK, State.ABORTED):
        return SetSplit(rollout.plan.stable, None, 0.0)
    return SetSplit(rollout.plan.stable, rollout.plan.canary, rollout.weight)


def stage_of(rollout: Rollout) -> Stage:
    """What is asked of the evidence now."""
    plan, is_last = rollout.plan, rollout.step == len(rollout.plan.steps) - 1
    bakes = plan.steps[rollout.step].bake > 0
    return Stage(
        windows_needed=plan.min_windows if bakes else 0,
        requests_needed=plan.min_requests if bakes else 0,
        window_seconds=plan.window,
        request_seconds=rollout.evidence.seconds_per_request,
        needs_proof=plan.last_step == "non_inferior" and rollout.step == len(plan.steps) - 2,
        has_baseline=not is_last or plan.holdback > 0,
        is_promoted=rollout.state == State.PROMOTED and (rollout.is_kept or not rollout.is_final),
        is_before_last=rollout.step == len(plan.steps) - 2,
    )


def verdicts_of(rollout: Rollout) -> tuple[Verdict, ...]:
    """Every guardrail's answer to the evidence so far."""
    return judge(rollout.evidence, rollout.plan, stage_of(rollout))


def failure_of(rollout: Rollout) -> str | None:
    """The guardrail that fails and why; in automatic mode that takes the canary back, in manual mode it holds."""
    decisive = worst(verdicts_of(rollout))
    if decisive is None or decisive.level < Level.FAIL:
        return None
    return f"{decisive.guardrail}: {decisive.reason}"


def shortfall_of(rollout: Rollout) -> str | None:
    """What the step must still see, whatever its guardrails say: a plan may have none that counts requests."""
    evidence, stage = rollout.evidence, stage_of(rollout)
    if evidence.step_requests[1] < stage.requests_needed:
        return f"{evidence.step_requests[1]} of {stage.requests_needed} canary requests in this step"
    if evidence.step_windows < stage.windows_needed:
        return f"{evidence.step_windows} of {stage.windows_needed} windows in this step"
    return None


def objection_of(rollout: Rollout) -> tuple[Level, str] | None:
    """How bad it is and what speaks against passing the step; None where its evidence suffices."""
    decisive = worst(verdicts_of(rollout))
    if decisive is not None and decisive.level > Level.PASS:
        return decisive.level, f"{decisive.guardrail}: {decisive.reason}"
    shortfall = shortfall_of(rollout)
    return None if shortfall is None else (Level.INSUFFICIENT, shortfall)


def begin(event: RolloutStarted) -> Rollout:
    """A rollout before its first event. Raises ConfigError on an unreadable plan."""
    plan = read_plan(event.plan)
    return Rollout(event.rollout_id, plan, Evidence.start(plan))


def waiting_for(rollout: Rollout, at: float) -> str | None:
    """What keeps a rollout whose bake is over from its next step."""
    if rollout.state == State.HOLDING:
        return rollout.reason
    if rollout.state != State.BAKING or rollout.elapsed(at) < rollout.plan.steps[rollout.step].bake:
        return None
    if not rollout.is_applied:
        return "routers have not applied the split yet"
    objection = objection_of(rollout)
    if objection is not None:
        return objection[1]
    following = min(rollout.step + 1, len(rollout.plan.steps) - 1)
    lack = lack_of(rollout.capacity, step_weight(rollout.plan, following))
    return lack or ("an operator's promote (mode: manual)" if rollout.plan.mode == "manual" else None)


def lack_of(capacity: Capacity, percent: float) -> str | None:
    """Why the ready replicas must not get so much traffic; None where they may."""
    if capacity.percent >= percent:
        return None
    return f"{capacity.ready} of {capacity.wanted} canary replicas are ready, too few for {percent:g} %"

"""What does an event do to a rollout? A transition table without any input or output of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

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
    SetSplit,
    SplitApplied,
    Ticked,
    WindowClosed,
)
from canary.guardrails import Evidence, Signal, observe
from canary.rollout_state import (
    Capacity,
    Rollout,
    State,
    failure_of,
    lack_of,
    objection_of,
    split_of,
    step_weight,
    verdicts_of,
    waiting_for,
)
from canary.verdict import Level
from fleet.errors import InvalidTransition


def advance(rollout: Rollout, event: Event) -> tuple[Rollout, tuple[SetSplit, ...]]:
    """The rollout after an event, and what is to be done about it.

    Raises InvalidTransition, with the story so far, where the event does not fit; nothing has changed then.
    """
    transition = TRANSITIONS.get((rollout.state, type(event)))
    if transition is None:
        raise _refusal(rollout, event)
    after = transition.carry_out(rollout, event)
    if after is rollout:
        return rollout, ()
    wanted = split_of(after)
    is_changed = wanted != split_of(rollout)
    if is_changed:
        after = replace(after, is_applied=False, evidence=after.evidence.reweighted(after.plan))
    return _clocked(after, event.at), (wanted,) if is_changed else ()


def _refusal(rollout: Rollout, event: Event) -> InvalidTransition:
    hint = "; retry starts a new attempt" if rollout.state in (State.ROLLED_BACK, State.ABORTED) else ""
    story = f"rollout '{rollout.id}' is {rollout.state} ({rollout.reason})"
    return InvalidTransition(f"{story}: cannot {event.verb}{hint}")


def _clocked(rollout: Rollout, at: float) -> Rollout:
    """Run the bake clock exactly while the step's weight is in force."""
    is_running = rollout.state == State.BAKING and rollout.is_applied
    if is_running and rollout.baking_since is None:
        return replace(rollout, baking_since=at)
    if not is_running and rollout.baking_since is not None:
        return replace(rollout, baked=rollout.elapsed(at), baking_since=None)
    return rollout


def _capacity_changed(rollout: Rollout, event: CapacityChanged) -> Rollout:
    capacity = Capacity(event.ready, event.wanted)
    if capacity == rollout.capacity:
        return rollout
    after = replace(rollout, capacity=capacity)
    return _resettled(after) if rollout.state in (State.PREPARING, State.BAKING, State.HOLDING) else after


def _resettled(rollout: Rollout) -> Rollout:
    """Bake if the step's weight can be carried and nothing speaks against it, else prepare or hold."""
    lack = lack_of(rollout.capacity, step_weight(rollout.plan, rollout.step))
    if rollout.state == State.PREPARING and lack:
        return replace(rollout, reason=lack)
    if lack:
        return replace(rollout, state=State.HOLDING, reason=lack)
    match rollout.evidence.signal:
        case Signal.CANARY_SILENT:
            return replace(rollout, state=State.HOLDING, reason="no data from the canary")
        case Signal.ALL_SILENT:
            return replace(rollout, state=State.HOLDING, reason="no data from either path: nothing is moved blindly")
        case Signal.MISROUTED:
            return replace(rollout, state=State.HOLDING, reason="frozen: the routers do not follow the split")
        case Signal.SEEN:
            failure = failure_of(rollout) if rollout.plan.mode == "manual" else None
            if failure is not None:
                told = f"{failure}; abort, or promote in spite of it (mode: manual)"
                return replace(rollout, state=State.HOLDING, reason=told)
            return replace(rollout, state=State.BAKING, reason=_at_step(rollout))


def _at_step(rollout: Rollout) -> str:
    return f"step {rollout.step + 1} of {len(rollout.plan.steps)} at {step_weight(rollout.plan, rollout.step):g} %"


def _split_applied(rollout: Rollout, _: SplitApplied) -> Rollout:
    # The window that is open now saw two splits, however late the last router was.
    return replace(rollout, is_applied=True, evidence=rollout.evidence.reweighted(rollout.plan))


def _window_closed(rollout: Rollout, event: WindowClosed) -> Rollout:
    if not rollout.is_judged:
        return rollout
    is_promoted = rollout.state == State.PROMOTED
    evidence = observe(rollout.evidence, rollout.plan, event.window, is_promoted=is_promoted)
    silent_since = None
    if evidence.signal == Signal.CANARY_SILENT:
        silent_since = event.at - event.window.seconds if rollout.silent_since is None else rollout.silent_since
    after = _latched(replace(rollout, evidence=evidence, silent_since=silent_since))
    failure = failure_of(after) if after.plan.mode == "automatic" else None
    if failure is not None:
        return _rolled_back(after, failure)
    return _resettled(after) if rollout.state in (State.BAKING, State.HOLDING) else after


def _latched(rollout: Rollout) -> Rollout:
    """What has failed now stays failed for the attempt."""
    failing = {verdict.guardrail: verdict.reason for verdict in verdicts_of(rollout) if verdict.level == Level.FAIL}
    failed = failing | dict(rollout.evidence.failed)
    return replace(rollout, evidence=replace(rollout.evidence, failed=failed)) if failing else rollout


def _hard_tripped(rollout: Rollout, event: HardTripped) -> Rollout:
    if event.trip.path != rollout.plan.canary or rollout.is_final:
        return rollout
    after = replace(rollout, evidence=replace(rollout.evidence, trip=event.trip))
    return _rolled_back(after, f"{event.trip.kind}: {event.trip.detail}")


def _rolled_back(rollout: Rollout, reason: str) -> Rollout:
    return replace(rollout, state=State.ROLLED_BACK, reason=reason, override=None)


def _ticked(rollout: Rollout, event: Ticked) -> Rollout:
    policy = rollout.plan.on_no_data
    if rollout.silent_since is not None and policy.then == "rollback" and rollout.is_judged:
        silent = event.at - rollout.silent_since
        if silent >= policy.hold:
            waiting = rollout.evidence.canary_waiting
            return _rolled_back(
                rollout, f"signal: {waiting} canary requests wait, nothing heard of them for {silent:.0f} s"
            )
    is_baked = rollout.elapsed(event.at) >= rollout.plan.steps[rollout.step].bake
    if rollout.state == State.BAKING and is_baked and waiting_for(rollout, event.at) is None:
        return _stepped_on(rollout)
    return rollout


def _stepped_on(rollout: Rollout) -> Rollout:
    if rollout.step == len(rollout.plan.steps) - 1:
        return _promoted(rollout, "every step passed")
    return _at_next_step(rollout)


def _at_next_step(rollout: Rollout) -> Rollout:
    after = replace(
        rollout,
        state=State.BAKING,
        step=rollout.step + 1,
        override=None,
        baked=0.0,
        baking_since=None,
        evidence=rollout.evidence.next_step(rollout.plan),
    )
    return replace(after, reason=_at_step(after))


def _promoted(rollout: Rollout, reason: str) -> Rollout:
    evidence = rollout.evidence.next_step(rollout.plan)
    return replace(rollout, state=State.PROMOTED, reason=reason, override=None, evidence=evidence)


def _paused(rollout: Rollout, _: OperatorPaused) -> Rollout:
    return replace(rollout, state=State.PAUSED, reason="paused by the operator")


def _weight_set(rollout: Rollout, event: OperatorSetWeight) -> Rollout:
    reason = f"the operator set the weight to {event.percent:g} %; resume returns to the plan"
    return replace(rollout, state=State.PAUSED, reason=reason, override=event.percent)


def _resumed(rollout: Rollout, _: OperatorResumed) -> Rollout:
    return _resettled(replace(rollout, override=None))


def _operator_promoted(rollout: Rollout, event: OperatorPromoted) -> Rollout:
    is_last = rollout.step == len(rollout.plan.steps) - 1
    aim = 100.0 - rollout.plan.holdback if event.full or is_last else step_weight(rollout.plan, rollout.step + 1)
    lack = lack_of(rollout.capacity, aim)
    if lack:
        raise InvalidTransition(f"rollout '{rollout.id}' cannot be promoted: {lack}")
    objection = objection_of(rollout)
    recorded = "promoted by the operator"
    if objection is not None:
        recorded += f" in spite of {objection[0].label}: {objection[1]}"
    if event.full or is_last:
        return _promoted(rollout, recorded)
    after = _at_next_step(rollout)
    return replace(after, reason=f"{after.reason}, {recorded}")


def _kept(rollout: Rollout, event: OperatorPromoted) -> Rollout:
    """End the watch and the holdback: everything stays with the canary."""
    if rollout.is_final:
        raise InvalidTransition(f"rollout '{rollout.id}' is promoted already, for all requests")
    if rollout.plan.is_partial:
        raise InvalidTransition(f"rollout '{rollout.id}' is promoted: what does not win stays on stable for good")
    if not event.full:
        raise InvalidTransition(f"rollout '{rollout.id}' is promoted: promote --full ends its holdback")
    lack = lack_of(rollout.capacity, 100.0)
    if lack:
        raise InvalidTransition(f"the holdback of rollout '{rollout.id}' cannot end: {lack}")
    reason = f"the operator ended the holdback of {rollout.plan.holdback:g} %"
    objection = objection_of(rollout)
    if objection is not None and objection[0] > Level.INSUFFICIENT:
        reason += f" in spite of {objection[0].label}: {objection[1]}"
    return replace(rollout, is_kept=True, reason=reason)


def _aborted(rollout: Rollout, event: OperatorAborted) -> Rollout:
    if rollout.is_final:
        raise InvalidTransition(
            f"rollout '{rollout.id}' is promoted and '{rollout.plan.canary}' is the stable path: "
            f"start a rollout to '{rollout.plan.stable}' to go back"
        )
    reason = f"by {event.by or 'the operator'}" + (f": {event.reason}" if event.reason else "")
    return replace(rollout, state=State.ABORTED, reason=reason, override=None)


def _retried(rollout: Rollout, _: OperatorRetried) -> Rollout:
    again = Rollout(
        rollout.id,
        rollout.plan,
        Evidence.start(rollout.plan),
        attempt=rollout.attempt + 1,
        capacity=rollout.capacity,
    )
    return _resettled(again)


def _noted(rollout: Rollout, _: Event) -> Rollout:
    return rollout


@dataclass(frozen=True, slots=True)
class Transition:
    """What carries an event out, and the states it can lead to."""

    carry_out: Callable[[Rollout, Any], Rollout]
    to: tuple[State, ...]


_S = State
_ENDED = (_S.ROLLED_BACK, _S.ABORTED)
_ACTIVE = (_S.PREPARING, _S.BAKING, _S.PAUSED, _S.HOLDING)
_STARTED = (_S.BAKING, _S.PAUSED, _S.HOLDING)

TRANSITIONS: dict[tuple[State, type[Event]], Transition] = {
    (_S.PREPARING, CapacityChanged): Transition(_capacity_changed, (_S.PREPARING, _S.BAKING)),
    (_S.BAKING, CapacityChanged): Transition(_capacity_changed, (_S.BAKING, _S.HOLDING)),
    (_S.HOLDING, CapacityChanged): Transition(_capacity_changed, (_S.BAKING, _S.HOLDING)),
    **{(s, CapacityChanged): Transition(_capacity_changed, (s,)) for s in (_S.PAUSED, _S.PROMOTED, *_ENDED)},
    **{(s, SplitApplied): Transition(_split_applied, (s,)) for s in State},
    (_S.PREPARING, WindowClosed): Transition(_noted, (_S.PREPARING,)),
    (_S.BAKING, WindowClosed): Transition(_window_closed, (_S.BAKING, _S.HOLDING, _S.ROLLED_BACK)),
    (_S.HOLDING, WindowClosed): Transition(_window_closed, (_S.BAKING, _S.HOLDING, _S.ROLLED_BACK)),
    **{(s, WindowClosed): Transition(_window_closed, (s, _S.ROLLED_BACK)) for s in (_S.PAUSED, _S.PROMOTED)},
    **{(s, HardTripped): Transition(_hard_tripped, (s, _S.ROLLED_BACK)) for s in (*_ACTIVE, _S.PROMOTED)},
    (_S.PREPARING, Ticked): Transition(_noted, (_S.PREPARING,)),
    (_S.BAKING, Ticked): Transition(_ticked, (_S.BAKING, _S.PROMOTED, _S.ROLLED_BACK)),
    **{(s, Ticked): Transition(_ticked, (s, _S.ROLLED_BACK)) for s in (_S.PAUSED, _S.HOLDING, _S.PROMOTED)},
    **{(s, fact): Transition(_noted, (s,)) for s in _ENDED for fact in (WindowClosed, HardTripped, Ticked)},
    (_S.BAKING, OperatorPaused): Transition(_paused, (_S.PAUSED,)),
    (_S.HOLDING, OperatorPaused): Transition(_paused, (_S.PAUSED,)),
    (_S.PAUSED, OperatorResumed): Transition(_resumed, (_S.BAKING, _S.HOLDING)),
    **{(s, OperatorSetWeight): Transition(_weight_set, (_S.PAUSED,)) for s in _STARTED},
    **{(s, OperatorPromoted): Transition(_operator_promoted, (_S.BAKING, _S.PROMOTED)) for s in _STARTED},
    (_S.PROMOTED, OperatorPromoted): Transition(_kept, (_S.PROMOTED,)),
    **{(s, OperatorAborted): Transition(_aborted, (_S.ABORTED,)) for s in (*_ACTIVE, _S.PROMOTED)},
    **{(s, OperatorRetried): Transition(_retried, (_S.PREPARING, _S.BAKING)) for s in _ENDED},
}

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from canary.events import (
    CapacityChanged,
    HardTripped,
    OperatorAborted,
    OperatorPaused,
    OperatorPromoted,
    OperatorResumed,
    OperatorRetried,
    OperatorSetWeight,
    RolloutStarted,
    SetSplit,
    SplitApplied,
    Ticked,
    WindowClosed,
)
from canary.rollout import TRANSITIONS, advance
from canary.rollout_state import OVER, Rollout, State, begin, split_of, verdicts_of, waiting_for
from canary.verdict import Level
from canary.windows import ArmUsage
from fleet.errors import InvalidTransition
from fleet.traffic import HardTrip, HardTripKind, PathTally
from tests.canary.events_strategy import histories, starts, tally, window
from tests.canary.world import plan


def started(**changes) -> Rollout:
    return begin(RolloutStarted(0.0, "speculative-1", plan(**changes)))


def after(rollout: Rollout, *events) -> Rollout:
    for event in events:
        rollout, _ = advance(rollout, event)
    return rollout


def baking(**changes) -> Rollout:
    return after(started(**changes), CapacityChanged(0.0, 1, 1), SplitApplied(1.0, 2, 1, 0.2))


def good_window(at: float, percent: float = 5.0) -> WindowClosed:
    canary = tally(6, itl=0.015, acceptance=0.75)
    return WindowClosed(at, window(canary, tally(6), percent=percent))


def passed_step(rollout: Rollout, at: float, windows: int = 40) -> tuple[Rollout, float]:
    for _ in range(windows):
        at += 2.0
        rollout = after(rollout, good_window(at, rollout.weight))
    return after(rollout, Ticked(at)), at


@settings(max_examples=50, deadline=None)
@given(starts, histories)
def test_any_order_of_events_keeps_the_invariants(start, history):
    rollout, at = begin(start), 0.0
    for pause, event in history:
        at += pause
        event = replace(event, at=at)
        try:
            following, orders = advance(rollout, event)
        except InvalidTransition:
            continue
        assert following.state in TRANSITIONS[rollout.state, type(event)].to
        assert 0 <= following.weight <= 100
        assert following.is_final or following.weight <= following.capacity.percent
        assert list(orders) == ([split_of(following)] if split_of(following) != split_of(rollout) else [])
        assert 0 <= following.elapsed(at) <= at
        if following.state in (State.ROLLED_BACK, State.ABORTED):
            assert following.weight == 0
            assert split_of(following) == SetSplit("baseline", None, 0.0)
        if rollout.state in (State.ROLLED_BACK, State.ABORTED):
            assert following.state == rollout.state or isinstance(event, OperatorRetried)
        if following.state == rollout.state and following.step == rollout.step:
            assert following.elapsed(at) >= rollout.elapsed(at) or following.attempt > rollout.attempt
        rollout = following


@settings(max_examples=30, deadline=None)
@given(starts, histories)
def test_abort_works_wherever_the_canary_can_still_be_taken_out(start, history):
    rollout, at = begin(start), 0.0
    for pause, event in history:
        at += pause
        try:
            rollout, _ = advance(rollout, replace(event, at=at))
        except InvalidTransition:
            continue
        if rollout.is_judged:
            aborted = after(rollout, OperatorAborted(at, "enough"))
            assert (aborted.state, aborted.weight, aborted.reason) == (State.ABORTED, 0.0, "by the operator: enough")


def test_every_state_answers_every_fact():
    facts = (CapacityChanged, SplitApplied, WindowClosed, HardTripped, Ticked)
    assert all((state, fact) in TRANSITIONS for state in State for fact in facts)


def test_a_refused_event_tells_the_story_so_far():
    rollout = after(baking(), OperatorAborted(5.0, "bad answers"))
    story = r"'speculative-1' is aborted \(by the operator: bad answers\): cannot pause; retry"
    with pytest.raises(InvalidTransition, match=story):
        advance(rollout, OperatorPaused(6.0))


def test_no_traffic_moves_before_enough_replicas_are_ready():
    rollout = after(started(steps=[{"weight": 60, "bake": "10s"}, {"weight": 100}]), CapacityChanged(1.0, 1, 2))
    assert (rollout.state, rollout.weight) == (State.PREPARING, 0.0)
    assert "1 of 2 canary replicas are ready, too few for 60 %" in rollout.reason
    rollout, orders = advance(rollout, CapacityChanged(2.0, 2, 2))
    assert (rollout.state, orders) == (State.BAKING, (SetSplit("baseline", "speculative", 60.0),))


def test_the_bake_clock_starts_when_the_routers_follow_the_split():
    rollout = after(started(), CapacityChanged(10.0, 1, 1))
    assert rollout.elapsed(20.0) == 0.0
    assert after(rollout, SplitApplied(20.0, 2, 1, 0.3)).elapsed(25.0) == 5.0


def test_the_bake_clock_stands_while_paused():
    rollout = after(baking(), OperatorPaused(11.0))
    assert rollout.elapsed(500.0) == 10.0
    assert after(rollout, OperatorResumed(500.0)).elapsed(505.0) == 15.0


def test_a_good_canary_walks_through_the_steps_to_promotion():
    rollout, at = passed_step(baking(), 1.0)
    assert (rollout.step, rollout.weight) == (1, 50.0)
    rollout, at = passed_step(after(rollout, SplitApplied(at, 3, 1, 0.2)), at)
    assert (rollout.step, rollout.weight) == (2, 100.0)
    rollout = after(rollout, SplitApplied(at, 4, 1, 0.2), Ticked(at + 1))
    assert (rollout.state, split_of(rollout)) == (State.PROMOTED, SetSplit("speculative", None, 0.0))


def test_too_few_requests_hold_the_step_and_say_so():
    rollout = baking(min_requests=1000)
    rollout, at = passed_step(rollout, 1.0)
    assert rollout.step == 0
    assert "240 of 1000" in (waiting_for(rollout, at) or "")


GUARDRAILS = {
    "itl_p95": {"max_increase": "10%"},
    "gap_p99": {"max": "250ms"},
    "stall": {"max_increase": "5pp"},
    "kv_pressure": {"max_increase": "10pp"},
    "error_rate": {"max_increase": "5pp"},
    "acceptance": {"max_decrease": "10%", "reference": 0.7},
}


def full_window(at: float, requests: int, percent: float) -> WindowClosed:
    """Something for every guardrail to see."""
    arms = tally(requests, itl=0.015, acceptance=0.75), tally(6)
    for arm in arms:
        arm.gap.add(0.03, 50)
        arm.stall.add(1.0, 5)
    usage = ArmUsage(looks=2, samples=2, gpus=2.0)
    return WindowClosed(at, replace(window(*arms, percent=percent), stable_usage=usage, canary_usage=usage))


@pytest.mark.parametrize("names", [(name,) for name in GUARDRAILS] + [()], ids=lambda names: "".join(names) or "none")
def test_no_step_passes_below_its_requests_and_windows_whatever_watches_it(names):
    limits = {name: GUARDRAILS[name] for name in names}
    rollout, at = baking(guardrails=limits, min_requests=50, min_windows=8, last_step="no_harm"), 1.0
    for _ in range(40):
        at += 2.0
        rollout = after(rollout, full_window(at, 1, rollout.weight), Ticked(at))
    assert rollout.step == 0
    assert "40 of 50" in (waiting_for(rollout, at) or "")
    for _ in range(2):
        at += 2.0
        rollout = after(rollout, full_window(at, 6, rollout.weight), Ticked(at))
    assert rollout.step == 1


def test_windows_in_which_the_canary_was_not_heard_are_not_counted():
    rollout, at = baking(guardrails={}, min_requests=50, min_windows=3), 1.0
    busy, idle = full_window(at, 60, 5.0).window, window(PathTally(), tally(6))
    for item in (busy, busy, busy, *[idle] * 30):
        at += 2.0
        rollout = after(rollout, WindowClosed(at, item), Ticked(at))
    assert (rollout.step, waiting_for(rollout, at)) == (0, "1 of 3 windows in this step")
    rollout = after(rollout, WindowClosed(at, busy), WindowClosed(at, busy), Ticked(at))
    assert rollout.step == 1


def test_the_last_step_must_show_that_the_canary_is_no_worse():
    slow_to_prove = passed_step(baking(steps=[{"weight": 50, "bake": "4s"}, {"weight": 100}], min_windows=1), 1.0, 4)
    rollout, at = slow_to_prove
    assert rollout.step == 0
    assert "not yet shown to be at most 10 % slower" in (waiting_for(rollout, at) or "")
    careless, _ = passed_step(
        baking(steps=[{"weight": 50, "bake": "4s"}, {"weight": 100}], min_windows=1, last_step="no_harm"), 1.0, 4
    )
    assert careless.step == 1


@pytest.mark.parametrize("state", ["baking", "paused", "holding"])
def test_guardrails_act_in_every_state(state):
    rollout = baking()
    if state == "paused":
        rollout = after(rollout, OperatorPaused(2.0))
    if state == "holding":
        rollout = after(rollout, CapacityChanged(2.0, 0, 1))
    assert rollout.state == state
    bad = window(tally(10, failed=10, acceptance=0.7), tally(10))
    for at in range(4, 40, 2):
        rollout = after(rollout, WindowClosed(float(at), bad))
    assert rollout.state == State.ROLLED_BACK
    assert rollout.reason.startswith("error_rate: requests fail more often")


def test_a_failure_latches_until_the_operator_retries_with_fresh_evidence():
    trip = HardTrip("speculative", HardTripKind.OOM, "replica 7 could not allocate 2 GiB")
    rollout = after(baking(), good_window(4.0), HardTripped(5.0, trip))
    assert (rollout.state, rollout.weight) == (State.ROLLED_BACK, 0.0)
    assert rollout.reason == "oom: replica 7 could not allocate 2 GiB"
    assert after(rollout, good_window(6.0), Ticked(7.0), CapacityChanged(8.0, 1, 1)).state == State.ROLLED_BACK
    again = after(rollout, OperatorRetried(9.0))
    assert (again.state, again.attempt, again.step, again.weight) == (State.BAKING, 2, 0, 5.0)
    assert again.evidence == replace(started().evidence, to_skip=2)


def test_in_manual_mode_a_proof_stays_whatever_the_windows_after_it_bring():
    limits = {"itl_p95": {"max_increase": "10%"}}
    rollout, at = baking(mode="manual", guardrails=limits, last_step="no_harm"), 1.0
    while rollout.state == State.BAKING:
        at += 2.0
        rollout = after(rollout, WindowClosed(at, window(tally(10, itl=0.09), tally(10))))
    assert rollout.state == State.HOLDING
    for _ in range(40):
        at += 2.0
        rollout = after(rollout, WindowClosed(at, window(tally(10, itl=0.01), tally(10))))
    found = next(verdict for verdict in verdicts_of(rollout) if verdict.guardrail == "itl_p95")
    assert found.proof is not None
    assert not found.proof.is_reached
    assert (found.level, rollout.state) == (Level.FAIL, State.HOLDING)
    assert "proven before, and that stays until a retry" in rollout.reason
    onwards = after(rollout, OperatorPromoted(at, full=False), good_window(at + 2.0, 50.0))
    assert (onwards.step, onwards.state) == (1, State.HOLDING)
    again = after(onwards, OperatorAborted(at + 3.0, ""), OperatorRetried(at + 4.0))
    assert again.evidence.failed == {}


def test_a_trip_of_stable_is_not_the_canarys_fault():
    rollout = baking()
    assert after(rollout, HardTripped(5.0, HardTrip("baseline", HardTripKind.OOM, "x"))) is rollout


def test_silence_of_the_canary_alone_holds_and_then_rolls_back():
    silent = window(PathTally(assigned=2), tally(10), still_open=(3, 0))
    rollout = after(baking(), WindowClosed(10.0, silent))
    assert (rollout.state, rollout.reason) == (State.HOLDING, "no data from the canary")
    assert after(rollout, Ticked(27.9)).state == State.HOLDING
    gone = after(rollout, Ticked(28.0))
    assert gone.state == State.ROLLED_BACK
    assert gone.reason == "signal: 3 canary requests wait, nothing heard of them for 20 s"
    back = after(rollout, good_window(12.0), Ticked(100.0))
    assert back.state == State.BAKING


def test_silence_of_both_paths_freezes_and_never_rolls_back():
    rollout = after(baking(), WindowClosed(10.0, window(PathTally(), PathTally())))
    assert (rollout.state, rollout.weight) == (State.HOLDING, 5.0)
    assert after(rollout, Ticked(10_000.0)).state == State.HOLDING
    assert rollout.elapsed(10_000.0) == 9.0


def test_a_canary_without_requests_of_its_own_is_no_loss_of_signal():
    rollout = after(baking(), WindowClosed(10.0, window(PathTally(), tally(10))))
    assert rollout.state == State.BAKING


def test_lost_replicas_take_the_weight_down_and_their_return_takes_it_up_again():
    rollout = after(baking(), CapacityChanged(5.0, 0, 1))
    assert (rollout.state, rollout.weight) == (State.HOLDING, 0.0)
    rollout = after(rollout, CapacityChanged(9.0, 1, 1))
    assert (rollout.state, rollout.weight) == (State.BAKING, 5.0)


def test_set_weight_pauses_and_resume_returns_to_the_plan():
    rollout = after(baking(), OperatorSetWeight(3.0, 33.0))
    assert (rollout.state, rollout.weight) == (State.PAUSED, 33.0)
    assert after(rollout, OperatorResumed(9.0)).weight == 5.0


def test_promotion_past_missing_evidence_is_recorded():
    rollout = after(baking(), OperatorPromoted(3.0, full=False))
    assert (rollout.state, rollout.step, rollout.weight) == (State.BAKING, 1, 50.0)
    assert "promoted by the operator in spite of insufficient" in rollout.reason


def test_full_promotion_needs_the_whole_capacity():
    rollout = after(started(), CapacityChanged(0.0, 1, 2))
    with pytest.raises(InvalidTransition, match="1 of 2 canary replicas are ready, too few for 100 %"):
        advance(rollout, OperatorPromoted(3.0, full=True))
    promoted = after(rollout, CapacityChanged(4.0, 2, 2), OperatorPromoted(5.0, full=True))
    assert (promoted.state, promoted.weight) == (State.PROMOTED, 100.0)


def test_a_holdback_keeps_a_baseline_that_can_still_take_the_traffic_back():
    rollout = after(baking(holdback=5), OperatorPromoted(3.0, full=True))
    assert split_of(rollout) == SetSplit("baseline", "speculative", 95.0)
    rollout = after(rollout, SplitApplied(4.0, 3, 1, 0.2))
    bad = window(tally(40, itl=0.09, acceptance=0.7), tally(4), percent=95.0)
    for at in range(6, 200, 2):
        rollout = after(rollout, WindowClosed(float(at), bad))
    assert rollout.state == State.ROLLED_BACK
    assert rollout.reason.startswith("itl_p95")
    assert split_of(rollout) == SetSplit("baseline", None, 0.0)


def test_an_operator_ends_the_holdback_and_keeps_the_canary():
    watching = after(baking(holdback=5), OperatorPromoted(3.0, full=True), SplitApplied(4.0, 3, 1, 0.2))
    with pytest.raises(InvalidTransition, match="promote --full ends its holdback"):
        advance(watching, OperatorPromoted(5.0, full=False))
    with pytest.raises(InvalidTransition, match="0 of 1 canary replicas are ready, too few for 100 %"):
        advance(after(watching, CapacityChanged(5.0, 0, 1)), OperatorPromoted(6.0, full=True))
    kept, orders = advance(watching, OperatorPromoted(6.0, full=True))
    assert orders == (SetSplit("speculative", None, 0.0),)
    assert (kept.state, kept.weight, kept.is_judged) == (State.PROMOTED, 100.0, False)
    assert kept.reason == "the operator ended the holdback of 5 %"
    assert after(kept, SplitApplied(7.0, 4, 1, 0.2), Ticked(900.0), CapacityChanged(901.0, 0, 1)).weight == 100.0
    for event in (OperatorPromoted(8.0, full=True), OperatorAborted(8.0, "")):
        with pytest.raises(InvalidTransition, match="is promoted"):
            advance(kept, event)


def test_promotion_without_a_holdback_is_final():
    rollout = after(baking(), OperatorPromoted(3.0, full=True))
    with pytest.raises(InvalidTransition, match="start a rollout to 'baseline' to go back"):
        advance(rollout, OperatorAborted(4.0, ""))
    assert after(rollout, HardTripped(5.0, HardTrip("speculative", HardTripKind.OOM, "x"))) is rollout
    assert rollout.state in OVER

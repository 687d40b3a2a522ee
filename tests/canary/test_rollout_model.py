"""What holds in every situation that a rollout can get into, for every judge there could be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import get_args

import pytest

from canary.events import (
    CapacityChanged,
    Event,
    HardTripped,
    OperatorAborted,
    OperatorPromoted,
    OperatorResumed,
    OperatorRetried,
    OperatorSetWeight,
    SetSplit,
    SplitApplied,
    Ticked,
    WindowClosed,
)
from canary.judging.split import SplitRail
from canary.rollout import TRANSITIONS
from canary.rollout_state import OVER, State, failure_of, lack_of, split_of, step_weight, verdicts_of
from canary.verdict import Level
from tests.canary.rollout_model import Edge, Explored, any_judge, explore, model_plan

ENDED = (State.ROLLED_BACK, State.ABORTED)
FACTS = (CapacityChanged, SplitApplied, WindowClosed, HardTripped, Ticked)
PLANS = {
    "one step": {"steps": [{"weight": 100, "bake": "40s"}]},
    "as usual": {},
    "holdback": {"holdback": 5},
    "silence only holds": {"on_no_data": {"hold": "20s", "then": "hold"}},
    "manual": {"mode": "manual", "holdback": 5},
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(PLANS[name], id=name, marks=() if name == "one step" else pytest.mark.patient) for name in PLANS
    ],
)
def explored(request: pytest.FixtureRequest) -> Iterable[Explored]:
    with any_judge():
        yield explore(model_plan(**request.param))


def numbers(explored: Explored, *states: State) -> set[int]:
    return {number for number, rollout in enumerate(explored.rollouts) if rollout.state in states}


def test_the_table_says_exactly_what_can_happen(explored):
    walked = defaultdict(set)
    for edge in explored.edges:
        walked[edge.before.state, type(edge.event)].add(edge.after.state)
    assert numbers(explored, *State) == set(range(len(explored.rollouts)))
    assert {rollout.state for rollout in explored.rollouts} == set(State)
    for pair, states in walked.items():
        assert states <= set(TRANSITIONS[pair].to)
    plan = explored.rollouts[0].plan
    if plan.holdback and plan.mode == "automatic":
        assert walked == {pair: set(transition.to) for pair, transition in TRANSITIONS.items()}


def test_every_kind_of_event_is_tried_in_every_situation(explored):
    tried = {(edge.start, type(edge.event)) for edge in explored.edges}
    facts = {fact for fact in get_args(Event) if fact in FACTS}
    assert all((number, fact) in tried for number in range(len(explored.rollouts)) for fact in facts)
    for before, event in explored.refused:
        assert not isinstance(event, FACTS)
        is_known = (before.state, type(event)) in TRANSITIONS
        assert not is_known or isinstance(event, OperatorPromoted | OperatorAborted)


def test_the_weight_stays_within_its_bounds_and_within_what_is_ready(explored):
    for rollout in explored.rollouts:
        is_free = rollout.override is not None or rollout.is_kept
        assert 0 <= rollout.weight <= 100 - rollout.plan.holdback or is_free
        assert rollout.is_final or rollout.weight <= rollout.capacity.percent
        if rollout.state in (State.PREPARING, *ENDED):
            assert split_of(rollout) == SetSplit("baseline", None, 0.0)


def test_orders_are_given_just_where_the_split_changes(explored):
    for edge in explored.edges:
        is_changed = split_of(edge.after) != split_of(edge.before)
        assert edge.orders == ((split_of(edge.after),) if is_changed else ())
        assert not is_changed or not edge.after.is_applied


def test_nothing_but_a_retry_leaves_a_failed_attempt_and_it_forgets_everything(explored):
    for edge in explored.edges:
        if edge.before.state in ENDED and edge.after.state != edge.before.state:
            assert isinstance(edge.event, OperatorRetried)
        if isinstance(edge.event, OperatorRetried):
            assert edge.after.attempt == edge.before.attempt + 1
            assert (edge.after.step, edge.after.override, edge.after.silent_since) == (0, None, None)
            assert failure_of(edge.after) is None


def test_nothing_at_all_moves_a_finished_promotion(explored):
    final = {number for number, rollout in enumerate(explored.rollouts) if rollout.is_final}
    assert final
    assert all(rollout.is_kept for rollout in explored.rollouts if rollout.is_final and rollout.plan.holdback)
    assert all(edge.end in final for edge in explored.edges if edge.start in final)


def test_abort_wins_from_everywhere(explored):
    aborted = {edge.start: edge.after for edge in explored.edges if isinstance(edge.event, OperatorAborted)}
    for number, rollout in enumerate(explored.rollouts):
        if rollout.state not in ENDED and not rollout.is_final:
            assert (aborted[number].state, aborted[number].weight) == (State.ABORTED, 0.0)


def test_a_failure_takes_the_canary_back_whatever_the_state(explored):
    for edge in explored.edges:
        if not edge.before.is_judged:
            continue
        if isinstance(edge.event, HardTripped) and edge.event.trip.path == "speculative":
            assert edge.after.state == State.ROLLED_BACK
        has_failed = isinstance(edge.event, WindowClosed) and failure_of(edge.after) is not None
        if has_failed and edge.before.plan.mode == "automatic" and edge.before.state != State.PREPARING:
            assert edge.after.state == State.ROLLED_BACK
        if has_failed and edge.before.plan.mode == "manual":
            assert edge.after.weight == edge.before.weight
            assert edge.after.state in (State.HOLDING, State.PAUSED, State.PROMOTED)


def test_a_failure_stays_for_the_attempt(explored):
    for edge in explored.edges:
        before, after = edge.before, edge.after
        if before.evidence.failed and after.attempt == before.attempt:
            assert failure_of(after) is not None
            assert not isinstance(edge.event, WindowClosed) or after.state != State.BAKING


def is_operators(edge: Edge) -> bool:
    return not isinstance(edge.event, FACTS)


def test_no_step_is_taken_but_past_a_passed_one_or_by_an_operator(explored):
    taken = 0
    for edge in explored.edges:
        before, after = edge.before, edge.after
        moves_on = after.step > before.step or (after.state == State.PROMOTED != before.state)
        if not moves_on or is_operators(edge):
            continue
        taken += 1
        assert isinstance(edge.event, Ticked)
        assert (before.state, before.is_applied, before.plan.mode) == (State.BAKING, True, "automatic")
        assert before.elapsed(edge.event.at) >= before.plan.steps[before.step].bake
        assert all(verdict.level == Level.PASS for verdict in verdicts_of(before))
        assert before.evidence.step_requests[1] >= before.plan.min_requests
        assert before.evidence.step_windows >= before.plan.min_windows
        aim = min(before.step + 1, len(before.plan.steps) - 1)
        assert lack_of(before.capacity, step_weight(before.plan, aim)) is None
    assert (taken > 0) == (explored.rollouts[0].plan.mode == "automatic")


def test_the_weight_rises_only_by_a_step_by_returning_replicas_or_by_an_operator(explored):
    for edge in explored.edges:
        if edge.after.weight > edge.before.weight and not is_operators(edge):
            assert isinstance(edge.event, Ticked | CapacityChanged)
            assert edge.after.state in (State.BAKING, State.HOLDING, State.PAUSED, State.PROMOTED)
            assert edge.after.weight <= max(edge.after.target, 0.0)
        assert edge.after.override is None or edge.after.state == State.PAUSED
        if edge.after.override not in (None, edge.before.override):
            assert isinstance(edge.event, OperatorSetWeight)


def test_nobody_is_ever_stuck(explored):
    """An end can be reached from everywhere; without any operator too, and the good end wherever none has to act."""
    everyone = set(range(len(explored.rollouts)))
    over = numbers(explored, *OVER)
    assert explored.reaching(over, by=get_args(Event)) == everyone
    assert explored.reaching(over, by=FACTS) == everyone
    assert explored.reaching(numbers(explored, State.PROMOTED), by=get_args(Event)) == everyone
    good = explored.reaching(numbers(explored, State.PROMOTED), by=FACTS)
    for number, rollout in enumerate(explored.rollouts):
        is_frozen = any(isinstance(rail, SplitRail) and rail.has_tripped for rail in rollout.evidence.rails)
        is_waiting = rollout.state in (State.PAUSED, *ENDED) or is_frozen or rollout.plan.mode == "manual"
        assert (number in good) == (rollout.state == State.PROMOTED or not is_waiting)


def test_what_a_pause_froze_a_resume_takes_up_again(explored):
    for edge in explored.edges:
        if isinstance(edge.event, OperatorResumed):
            assert edge.after.step == edge.before.step
            assert edge.after.elapsed(edge.event.at) == edge.before.elapsed(edge.event.at)

"""Every situation that a rollout can get into, whatever its judge says: breadth-first, on the real `advance`.

Only the statistics are replaced, by a judge that may answer anything after any window. With it the rollout is a
finite machine: `situation` leaves out just what no decision reads (texts, the attempt's number, counts beyond
what a step asks for).
"""

from __future__ import annotations

import functools
import gc
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from canary import guardrails
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
from canary.guardrails import Evidence
from canary.judging.accusation import Budget, Moment
from canary.judging.split import SplitRail
from canary.rollout import advance
from canary.rollout_state import Rollout, begin
from canary.verdict import Level, Proof, Stage, Verdict
from canary.windows import ArmUsage, Window
from fleet.errors import InvalidTransition
from fleet.traffic import HardTrip, HardTripKind, Outcome, PathTally
from tests.canary.world import plan

WINDOW_SECONDS = 2.0
LONG_SECONDS = 100.0
"""More than any bake and any hold of the plans here."""
REPLICAS = 2
MISROUTED = 1_000_000
"""Newcomers by which a window says that routers give the canary what they like."""


@dataclass(frozen=True, slots=True)
class FreeJudge:
    """A guardrail that answers as the last window tells it to, by the number of the canary's stalls."""

    level: Level = Level.INSUFFICIENT

    def next_step(self, _: float) -> FreeJudge:
        return FreeJudge()

    def observe(self, window: Window, _: Moment) -> FreeJudge:
        return FreeJudge(Level(window.canary.stalled))

    def judge(self, _: Stage, __: Budget) -> Verdict:
        return Verdict("any", self.level, "so it was decided", "count")


@dataclass(frozen=True, slots=True)
class FreeSplit(SplitRail):
    """The split's self-test, which trips when a window tells it to."""

    def observe(self, window: Window, _: Moment) -> FreeSplit:
        return replace(self, has_tripped=self.has_tripped or window.canary.newcomers == MISROUTED)

    def proof(self, _: Stage, __: Budget) -> Proof:
        return Proof(0.0, 1.0)


@contextmanager
def any_judge() -> Iterator[None]:
    """Rollouts that begin inside are judged by `FreeJudge`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guardrails, "_rails", lambda _: (FreeJudge(), FreeSplit()))
        yield


def model_plan(**changes: Any) -> dict[str, Any]:
    steps = [{"weight": 40, "bake": "40s"}, {"weight": 100, "bake": "40s"}]
    return plan(steps=steps, min_requests=1, min_windows=1, warmup_windows=0) | changes


def _windows() -> Iterator[Window]:
    heard = PathTally(assigned=3, outcomes={Outcome.DONE: 3})
    for level in Level:
        yield Window(WINDOW_SECONDS, 40.0, heard, replace(heard, stalled=int(level)))
    yield Window(WINDOW_SECONDS, 40.0, heard, PathTally(), canary_usage=ArmUsage(open_requests=3))
    yield Window(WINDOW_SECONDS, 40.0, PathTally(), PathTally())
    yield Window(WINDOW_SECONDS, 40.0, heard, replace(heard, newcomers=MISROUTED))


EVENTS: tuple[Event, ...] = (
    *(CapacityChanged(0.0, ready, REPLICAS) for ready in range(REPLICAS + 1)),
    SplitApplied(0.0, 2, 1, 0.1),
    *(WindowClosed(0.0, window) for window in _windows()),
    *(HardTripped(0.0, HardTrip(path, HardTripKind.OOM, "none left")) for path in ("baseline", "speculative")),
    Ticked(0.0),
    OperatorPaused(0.0),
    OperatorResumed(0.0),
    *(OperatorPromoted(0.0, full) for full in (False, True)),
    OperatorAborted(0.0, "enough"),
    *(OperatorSetWeight(0.0, percent) for percent in (0.0, 70.0)),
    OperatorRetried(0.0),
)
"""One of each kind that makes a difference; each is tried at once and after a long time."""

Situation = tuple[Any, ...]


def situation(rollout: Rollout, at: float) -> Situation:
    """All that the following decisions depend on."""
    evidence, policy = rollout.evidence, rollout.plan.on_no_data
    silent = None if rollout.silent_since is None else at - rollout.silent_since >= policy.hold
    return (
        rollout.state,
        rollout.step,
        rollout.capacity,
        rollout.override,
        rollout.is_applied,
        rollout.is_kept,
        rollout.elapsed(at) >= rollout.plan.steps[rollout.step].bake,
        rollout.baking_since is None,
        silent,
        evidence.signal,
        evidence.trip is None,
        bool(evidence.failed),
        *_still_counted(evidence),
        *(rail.level if isinstance(rail, FreeJudge) else rail.has_tripped for rail in _rails_of(rollout)),
    )


def _still_counted(evidence: Evidence) -> tuple[bool, bool, int]:
    """Whether the step has its one request and its one window, and the windows to skip until that can be."""
    has_window = evidence.step_windows > 0
    return evidence.step_requests[1] > 0, has_window, 0 if has_window else evidence.to_skip


def _rails_of(rollout: Rollout) -> Iterator[FreeJudge | SplitRail]:
    for rail in rollout.evidence.rails:
        assert isinstance(rail, FreeJudge | SplitRail)
        yield rail


@dataclass(frozen=True, slots=True)
class Edge:
    """One event in one situation; a refused one leads nowhere."""

    before: Rollout
    event: Event
    after: Rollout
    orders: tuple[Any, ...]
    start: int
    end: int
    """Numbers of the situations."""


@dataclass(slots=True)
class Explored:
    """All situations, by number, each with the first rollout that got into it; and everything that can happen."""

    rollouts: list[Rollout]
    edges: list[Edge]
    refused: list[tuple[Rollout, Event]]

    def reaching(self, goals: set[int], *, by: tuple[type[Event], ...]) -> set[int]:
        """Situations from which events of these kinds can lead to one of the goals."""
        sources: dict[int, set[int]] = {}
        for edge in self.edges:
            if isinstance(edge.event, by):
                sources.setdefault(edge.end, set()).add(edge.start)
        found, open_ends = set(goals), list(goals)
        while open_ends:
            fresh = sources.get(open_ends.pop(), set()) - found
            found |= fresh
            open_ends += fresh
        return found


@contextmanager
def no_garbage() -> Iterator[None]:
    """For work that keeps all it makes: a collector that looks for what may go took a quarter of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@no_garbage()
def explore(raw_plan: dict[str, Any]) -> Explored:
    """Try every event in every situation that can be reached."""
    first = begin(RolloutStarted(0.0, "speculative-1", raw_plan))
    numbers = {situation(first, 0.0): 0}
    found, waiting = Explored([first], [], []), deque([(0, first, 0.0)])
    while waiting:
        start, rollout, at = waiting.popleft()
        for event in _timed(at):
            try:
                after, orders = advance(rollout, event)
            except InvalidTransition:
                found.refused.append((rollout, event))
                continue
            where = situation(after, event.at)
            if where not in numbers:
                numbers[where] = len(numbers)
                found.rollouts.append(after)
                waiting.append((numbers[where], after, event.at))
            found.edges.append(Edge(rollout, event, after, orders, start, numbers[where]))
    return found


@functools.cache
def _timed(at: float) -> tuple[Event, ...]:
    at_once = (replace(event, at=at) for event in EVENTS)
    return (*at_once, Ticked(at + LONG_SECONDS), WindowClosed(at + LONG_SECONDS, next(_windows())))

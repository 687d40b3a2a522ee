"""What would another plan have done? A recorded rollout is judged again, offline, with other limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from canary.closeness import Answer, Watch
from canary.events import (
    CapacityChanged,
    Event,
    HardTripped,
    OperatorRetried,
    RolloutStarted,
    SplitApplied,
    Ticked,
    WindowClosed,
)
from canary.history import tell
from canary.plan import Plan, read_plan
from canary.record import Recorded, plan_of
from canary.rollout import advance
from canary.rollout_state import OVER, begin
from fleet.errors import ConfigError, InvalidTransition

_TICK_MADE = (CapacityChanged, HardTripped, SplitApplied, Ticked, WindowClosed)
"""Events that only the controller's tick applies, which then applies Ticked at the same moment."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Where a rollout stands, and the event that brought it there."""

    attempt: int
    state: str
    weight: float
    """Percent."""
    seconds: float
    """Since the start, on the rollout's clock."""
    told: str

    def differs(self, other: Turn) -> bool:
        return (self.attempt, self.state, self.weight) != (other.attempt, other.state, other.weight)


@dataclass(frozen=True, slots=True)
class Simulation:
    """Two courses of a rollout: as it was, and as it would have been."""

    recorded: tuple[Turn, ...]
    simulated: tuple[Turn, ...]
    seconds: float
    """How long the record is."""
    parted: float | None
    """Seconds after the start at which the courses first differ; None where they never do."""
    left_out: tuple[str, ...]
    """Operators' commands that no longer fitted then, each with the reason."""
    answers: tuple[Answer, ...]
    """Of the simulated course's guardrails, the one that came nearest to tripping first."""
    recorded_answers: tuple[Answer, ...]
    """The same of the recorded course."""


def simulate(record: Sequence[Recorded], raw_plan: Mapping[str, Any] | None = None) -> Simulation:
    """Judge a record again, by its own plan (None) or another one; a record has to begin with RolloutStarted.

    With the plan of the record every decision is the recorded one. With another plan the record is
    followed to the letter up to the first decision that differs. From there on a split takes effect at
    the next recorded moment, and it ends with the attempt or with the record. Time passes at recorded
    moments only, so a decision may come up to a window late. The traffic is what was recorded: a weight
    that was not in force brings no other requests.

    Raises ConfigError on an unusable plan, or one for which the record cannot speak.
    """
    recorded_plan, started_at = plan_of(record), record[0].event.at
    plan = recorded_plan if raw_plan is None else raw_plan
    _refuse_unanswerable(read_plan(plan), read_plan(recorded_plan))
    rerun = _rerun(record, plan)
    as_it_was = rerun if plan == recorded_plan else _rerun(record, recorded_plan)
    turns = [Turn(r.attempt, r.state, r.weight, r.event.at - started_at, r.summary) for r in record]
    recorded = (turns[0], *(after for before, after in pairwise(turns) if after.differs(before)))
    return Simulation(
        recorded,
        tuple(rerun.turns),
        turns[-1].seconds,
        rerun.parted,
        tuple(rerun.left_out),
        rerun.watch.answers(rerun.rollout),
        as_it_was.watch.answers(as_it_was.rollout),
    )


def _rerun(record: Sequence[Recorded], plan: Mapping[str, Any]) -> _Rerun:
    rerun = _Rerun(RolloutStarted(record[0].event.at, record[0].rollout, plan))
    for event, then in _moments(record[1:]):
        if rerun.is_at_an_end(event):
            break
        rerun.follow(event, then)
    return rerun


def _refuse_unanswerable(plan: Plan, recorded: Plan) -> None:
    for name in ("stable", "canary", "window", "eligible"):
        if getattr(plan, name) != getattr(recorded, name):
            raise ConfigError(f"{name}: must be as recorded: the record holds no other traffic")


def _moments(record: Sequence[Recorded]) -> Iterator[tuple[Event, Recorded]]:
    """Every event with what the record says after it, ticks included that changed nothing at the time."""
    for number, item in enumerate(record, start=1):
        event = item.event
        if isinstance(event, RolloutStarted):
            continue
        yield event, item
        following = record[number].event if number < len(record) else None
        goes_on = isinstance(following, _TICK_MADE) and following.at == event.at
        if isinstance(event, _TICK_MADE) and not isinstance(event, Ticked) and not goes_on:
            yield Ticked(event.at), item


class _Rerun:
    """The rollout as it is carried out again."""

    def __init__(self, start: RolloutStarted) -> None:
        self.rollout = begin(start)
        self.turns = [self._turn(start, tell(None, start, self.rollout), start.at)]
        self.parted: float | None = None
        self.left_out: list[str] = []
        self.watch = Watch()
        self._started_at = start.at

    def is_at_an_end(self, event: Event) -> bool:
        """On a course of its own nobody knows what an operator would have tried again."""
        is_ended = self.rollout.state in OVER and not self.rollout.is_judged
        return self.parted is not None and (is_ended or isinstance(event, OperatorRetried))

    def follow(self, event: Event, then: Recorded) -> None:
        if self.parted is None:
            self._apply(event)
            now = self.rollout
            if (now.attempt, now.state.value, now.weight) != (then.attempt, then.state, then.weight):
                self.parted = event.at - self._started_at
            return
        if not self.rollout.is_applied:
            self._apply(SplitApplied(event.at, 0, 1, 0.0))
        if not isinstance(event, SplitApplied):
            self._apply(event)

    def _apply(self, event: Event) -> None:
        before = self.rollout
        try:
            self.rollout, _ = advance(before, event)
        except InvalidTransition as refusal:
            self.left_out.append(str(refusal))
            return
        turn = self._turn(event, tell(before, event, self.rollout), self._started_at)
        if isinstance(event, WindowClosed) and self.rollout is not before:
            self.watch.look(self.rollout, turn.seconds)
        if turn.differs(self.turns[-1]):
            self.turns.append(turn)

    def _turn(self, event: RolloutStarted | Event, told: str, started_at: float) -> Turn:
        rollout = self.rollout
        return Turn(rollout.attempt, rollout.state.value, rollout.weight, event.at - started_at, told)

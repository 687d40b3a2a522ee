"""Is this turn of a rollout worth telling? What webhooks are sent, as written into the journal with the event."""

from __future__ import annotations

from dataclasses import dataclass

from canary.rollout_state import Rollout, State
from fleet.notices import NoticeKind

_ARRIVALS = {
    State.HOLDING: NoticeKind.HOLD,
    State.PROMOTED: NoticeKind.PROMOTION,
    State.ROLLED_BACK: NoticeKind.ROLLBACK,
    State.ABORTED: NoticeKind.ABORT,
}


@dataclass(frozen=True, slots=True)
class Notice:
    """One turn, told so that it can be understood alone."""

    kind: NoticeKind
    at: float
    """Seconds since the Unix epoch."""
    rollout: str
    attempt: int
    stable: str
    canary: str
    state: str
    step: int
    """1-based."""
    steps: int
    weight: float
    """Percent of the eligible requests that the canary gets from now on."""
    summary: str


def notice_of(before: Rollout | None, after: Rollout, summary: str, at: float) -> Notice | None:
    """The notice of an event that led from one state of a rollout to the next, if it is worth one."""
    kind = _kind(before, after)
    if kind is None:
        return None
    return Notice(
        kind=kind,
        at=at,
        rollout=after.id,
        attempt=after.attempt,
        stable=after.plan.stable,
        canary=after.plan.canary,
        state=after.state.value,
        step=after.step + 1,
        steps=len(after.plan.steps),
        weight=after.weight,
        summary=summary,
    )


def _kind(before: Rollout | None, after: Rollout) -> NoticeKind | None:
    if before is None:
        return None
    if after.state != before.state and after.state in _ARRIVALS:
        return _ARRIVALS[after.state]
    # Back from a pause is the operator's own doing, and no news to anybody.
    begins = before.state in (State.PREPARING, State.HOLDING) or after.step != before.step
    return NoticeKind.STEP if after.state == State.BAKING and begins else None

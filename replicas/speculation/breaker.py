"""Is waiting for the draft worth it? A circuit breaker as a table: state × event -> breaker.

Closed: rounds wait for the draft. Open: nothing is sent and nobody waits. Half-open: one honest try.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

STRAIN_LIMIT = 4.0
"""Late rounds in a row that open a closed breaker."""
RELIEF = 0.25
"""What a round in time takes back, so that up to one late round in five is put up with for good."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerEvent(StrEnum):
    ROUND_IN_TIME = "round_in_time"
    ROUND_LATE = "round_late"
    """A proposal that was waited for missed its deadline, or was wrong."""
    DRAFT_SILENT = "draft_silent"
    """Nothing at all was heard for longer than any round may take."""
    PAUSE_ELAPSED = "pause_elapsed"


@dataclass(frozen=True, slots=True)
class Breaker:
    """The state with its evidence."""

    state: BreakerState = BreakerState.CLOSED
    strain: float = 0.0
    openings: int = 0
    """Openings since the breaker was last closed; each doubles the pause."""
    retry_at: float = 0.0
    """Monotonic second at which an open breaker tries again."""

    @property
    def is_open(self) -> bool:
        return self.state is BreakerState.OPEN


def advance(breaker: Breaker, event: BreakerEvent, now: float) -> Breaker:
    """The breaker after an event at monotonic second `now`."""
    return TRANSITIONS[breaker.state, event](breaker, now)


def _stay(breaker: Breaker, now: float) -> Breaker:
    return breaker


def _relieve(breaker: Breaker, now: float) -> Breaker:
    return replace(breaker, strain=max(0.0, breaker.strain - RELIEF))


def _strain(breaker: Breaker, now: float) -> Breaker:
    strained = replace(breaker, strain=breaker.strain + 1.0)
    return _open(strained, now) if strained.strain >= STRAIN_LIMIT else strained


def _open(breaker: Breaker, now: float) -> Breaker:
    pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(breaker.openings, 16))
    return Breaker(BreakerState.OPEN, openings=breaker.openings + 1, retry_at=now + pause)


def _try_again(breaker: Breaker, now: float) -> Breaker:
    return replace(breaker, state=BreakerState.HALF_OPEN)


def _close(breaker: Breaker, now: float) -> Breaker:
    return Breaker()


TRANSITIONS: Mapping[tuple[BreakerState, BreakerEvent], Callable[[Breaker, float], Breaker]] = {
    (BreakerState.CLOSED, BreakerEvent.ROUND_IN_TIME): _relieve,
    (BreakerState.CLOSED, BreakerEvent.ROUND_LATE): _strain,
    (BreakerState.CLOSED, BreakerEvent.DRAFT_SILENT): _open,
    (BreakerState.CLOSED, BreakerEvent.PAUSE_ELAPSED): _stay,
    (BreakerState.OPEN, BreakerEvent.ROUND_IN_TIME): _stay,
    (BreakerState.OPEN, BreakerEvent.ROUND_LATE): _stay,
    (BreakerState.OPEN, BreakerEvent.DRAFT_SILENT): _stay,
    (BreakerState.OPEN, BreakerEvent.PAUSE_ELAPSED): _try_again,
    (BreakerState.HALF_OPEN, BreakerEvent.ROUND_IN_TIME): _close,
    (BreakerState.HALF_OPEN, BreakerEvent.ROUND_LATE): _open,
    (BreakerState.HALF_OPEN, BreakerEvent.DRAFT_SILENT): _open,
    (BreakerState.HALF_OPEN, BreakerEvent.PAUSE_ELAPSED): _stay,
}

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.speculation.breaker import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    TRANSITIONS,
    Breaker,
    BreakerEvent,
    BreakerState,
    advance,
)

LATE, IN_TIME = BreakerEvent.ROUND_LATE, BreakerEvent.ROUND_IN_TIME


def after(*events: BreakerEvent, breaker: Breaker | None = None, now: float = 0.0) -> Breaker:
    breaker = breaker or Breaker()
    for event in events:
        breaker = advance(breaker, event, now)
    return breaker


def test_every_state_knows_every_event():
    assert set(TRANSITIONS) == {(state, event) for state in BreakerState for event in BreakerEvent}


def test_four_late_rounds_in_a_row_open_it():
    assert after(LATE, LATE, LATE).state is BreakerState.CLOSED
    assert after(LATE, LATE, LATE, LATE).state is BreakerState.OPEN


def test_one_late_round_in_five_is_put_up_with_for_good():
    assert after(*[LATE, *[IN_TIME] * 4] * 100).state is BreakerState.CLOSED


def test_every_other_round_late_opens_it_in_the_end():
    assert after(*[LATE, IN_TIME] * 10).state is BreakerState.OPEN


def test_silence_opens_it_at_once():
    assert after(BreakerEvent.DRAFT_SILENT).is_open


def test_one_round_in_time_closes_it_after_the_pause_and_one_late_round_does_not():
    trying = after(BreakerEvent.DRAFT_SILENT, BreakerEvent.PAUSE_ELAPSED)
    assert trying.state is BreakerState.HALF_OPEN
    assert after(IN_TIME, breaker=trying) == Breaker()
    assert after(LATE, breaker=trying).is_open


def test_pauses_double_up_to_half_a_minute_and_start_anew_once_it_was_closed():
    breaker, pauses = Breaker(), []
    for _ in range(9):
        breaker = after(BreakerEvent.DRAFT_SILENT, breaker=breaker)
        pauses.append(breaker.retry_at)
        breaker = after(BreakerEvent.PAUSE_ELAPSED, breaker=breaker)
    assert pauses[:3] == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    assert after(IN_TIME, BreakerEvent.DRAFT_SILENT, breaker=breaker).retry_at == FIRST_PAUSE_SECONDS


@settings(deadline=None)
@given(st.lists(st.sampled_from(list(BreakerEvent))))
def test_no_history_strands_it(events):
    breaker = after(*events, BreakerEvent.PAUSE_ELAPSED, IN_TIME)
    assert breaker.state is BreakerState.CLOSED
    assert 0 <= breaker.strain < 4

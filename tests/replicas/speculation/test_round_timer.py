from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.speculation.round_timer import RoundTimer


def timer_after(*seconds: float) -> RoundTimer:
    timer = RoundTimer(floor=0.02, ceiling=2.0)
    for value in seconds:
        timer.observe(value)
    return timer


def test_before_any_round_it_allows_the_ceiling():
    assert timer_after().budget(None) == 2.0


def test_before_any_round_it_allows_a_few_steps_of_the_target_within_the_bounds():
    assert [timer_after().budget(step) for step in (0.001, 0.03, 9.0)] == [0.02, 0.24, 2.0]


def test_steady_rounds_are_given_little_more_than_they_take():
    assert 0.1 <= timer_after(*[0.1] * 60).budget(None) < 0.101


def test_quick_rounds_are_given_the_floor():
    assert timer_after(*[0.001] * 60).budget(None) == 0.02


def test_uneven_rounds_are_given_their_spread():
    assert timer_after(*[0.05, 0.15] * 40).budget(None) > 0.15


def test_a_draft_that_becomes_slow_for_good_is_waited_for_after_a_few_rounds():
    assert timer_after(*[0.03] * 50, *[0.3] * 5).budget(None) > 0.3


@settings(deadline=None)
@given(st.lists(st.floats(0, 100)))
def test_the_budget_stays_within_its_bounds(seconds):
    assert 0.02 <= timer_after(*seconds).budget(None) <= 2.0

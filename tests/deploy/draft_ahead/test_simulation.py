"""The simulated pair: the draft's real session, times that are given, and answers whose agreement is known."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.bench.draft_ahead.simulation import Times, Trace, ahead_seconds, serial_seconds, simulate
from deploy.bench.draft_ahead.tables import simulated_table

LENGTH = 3
PROMPT = 5
TIMES = Times(verify=(0.040, 0.042, 0.044, 0.046), draft=0.005, round_trip=0.002)


def trace_of(tokens: int, agrees: float, second_agrees: float, seed: int = 0) -> Trace:
    """A random answer with a draft that is right, or right at its second choice, that often."""
    source = random.Random(seed)
    text = tuple(source.randrange(100) for _ in range(PROMPT + tokens))
    first, second = [], []
    for index in range(len(text)):
        truth = text[index + 1] if index + 1 < len(text) else 0
        is_right, is_second = source.random() < agrees, source.random() < second_agrees
        first.append(truth if is_right else 100)
        second.append(truth if not is_right and is_second else 101)
    return Trace(PROMPT, text, tuple(first), tuple(second))


def test_without_drafting_ahead_a_round_takes_what_the_cost_model_says():
    outcome = simulate(trace_of(120, 0.8, 0.5), TIMES, LENGTH, draft_ahead=False)
    assert outcome.round_seconds == pytest.approx(serial_seconds(TIMES, LENGTH))
    assert outcome.hits == 0


def test_a_draft_that_is_always_right_is_always_ready_and_hides_all_but_the_pass_under_way():
    outcome = simulate(trace_of(200, 1.0, 0.0), TIMES, LENGTH, draft_ahead=True)
    assert outcome.hit_rate == 1.0
    hidden = ahead_seconds(TIMES, LENGTH, 1.0)
    assert hidden <= outcome.round_seconds <= hidden + TIMES.draft
    assert outcome.tokens == outcome.rounds * (LENGTH + 1)


def test_a_draft_that_is_always_wrong_hides_nothing_and_costs_at_most_the_pass_under_way():
    trace = trace_of(60, 0.0, 0.0)
    ahead = simulate(trace, TIMES, LENGTH, draft_ahead=True)
    serial = simulate(trace, TIMES, LENGTH, draft_ahead=False)
    assert ahead.hits == 0
    assert ahead.tokens == ahead.rounds
    assert serial.round_seconds <= ahead.round_seconds <= serial.round_seconds + TIMES.draft


def test_second_choices_are_drafted_for_while_there_is_time():
    trace = trace_of(400, 0.6, 1.0)
    slow, fast = (simulate(trace, replace(TIMES, draft=draft), LENGTH, draft_ahead=True) for draft in (0.03, 0.001))
    assert slow.hit_rate < fast.hit_rate
    assert fast.hit_rate == 1.0, "every first disagreement is the second choice, and all of them were drafted"


@settings(max_examples=25)
@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.0005, 0.05), st.floats(0, 0.02), st.integers(0, 50))
def test_drafting_ahead_changes_no_token_and_lies_between_the_cost_models(
    agrees: float, second: float, draft: float, round_trip: float, seed: int
):
    trace, times = trace_of(40, agrees, second, seed), replace(TIMES, draft=draft, round_trip=round_trip)
    serial = simulate(trace, times, LENGTH, draft_ahead=False)
    ahead = simulate(trace, times, LENGTH, draft_ahead=True)
    assert (ahead.rounds, ahead.tokens) == (serial.rounds, serial.tokens)
    assert ahead.round_seconds <= serial_seconds(times, LENGTH) + draft + 1e-9
    assert ahead.round_seconds >= times.verify[LENGTH] + round_trip - 1e-9


def test_the_table_sets_simulation_and_model_side_by_side():
    lines = list(simulated_table([trace_of(80, 1.0, 0.0)], [TIMES], LENGTH))
    assert "Target: 40.0 / 42.0 / 44.0 / 46.0 ms for 1 to 4 rows; draft: 5.0 ms a pass." in lines
    wanted = "| 2 | 63.0 | 63.0 | 50.0 | 48.0 | 46.0 | 100% | +26% (+26% – +26%) | 2.54 | 2.54 | 3.20 |"
    assert wanted in lines, "four tokens of 40 ms in a round"

"""The draft length of a winning cell, held to a second reckoning: rounds and their seconds counted one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.evidence.draft_lengths import best_length, costs_of
from deploy.evidence.figures import AcceptanceFigures
from deploy.evidence.measured import ServerFigures
from deploy.evidence.result import CellResult, read_result

CELL = read_result(Path(__file__).parents[3] / "docs" / "example_matrix").cells[0]
LONGEST = 4
PLAIN, WIRE = 0.020, 0.001


def measured(accepted: Sequence[int], empty: int, verify: float, draft: float) -> CellResult:
    """A cell whose rounds drafted four tokens each, or none; a drafted token takes so long to verify and to draft."""
    rounds = len(accepted)
    by_position = tuple(sum(n >= place for n in accepted) / rounds for place in range(1, LONGEST + 1))
    figures = AcceptanceFigures(LONGEST * rounds, sum(accepted), rounds, 0.0, 0.0, 0.0, 0.0, by_position)
    steps = [PLAIN + verify * LONGEST] * rounds + [PLAIN] * empty
    server = ServerFigures(
        verify_seconds=sum(steps) / len(steps),
        draft_seconds=draft * LONGEST,
        wire_seconds=WIRE,
        rounds=rounds,
        empty_rounds=empty,
    )
    return replace(
        CELL,
        baseline_figures=replace(CELL.baseline_figures, server=ServerFigures(verify_seconds=PLAIN)),
        candidate_figures=replace(CELL.candidate_figures, server=server, acceptance=figures),
    )


def pace(accepted: Sequence[int], empty: int, each: float, length: int) -> float:
    """Tokens per second, had every draft been so long."""
    tokens = seconds = 0.0
    for of_round in accepted:
        tokens += 1 + min(of_round, length)
        seconds += PLAIN + WIRE + each * length
    return (tokens + empty) / (seconds + empty * PLAIN)


rounds_of_four = st.lists(st.integers(0, LONGEST), min_size=1, max_size=20)
seconds_each = st.floats(0.0, 0.02)


@given(rounds_of_four, st.integers(0, 200), seconds_each, seconds_each)
def test_the_chosen_length_is_the_one_that_brings_most_when_rounds_are_counted_one_by_one(
    accepted: Sequence[int], empty: int, verify: float, draft: float
) -> None:
    chosen = best_length(measured(accepted, empty, verify, draft))
    assert chosen is not None
    paces = [pace(accepted, empty, verify + draft, length) for length in range(1, LONGEST + 1)]
    assert paces[chosen - 1] == pytest.approx(max(paces), rel=1e-6)


@given(rounds_of_four, st.integers(0, 200), seconds_each, seconds_each)
def test_rounds_without_a_draft_make_no_drafted_token_look_cheaper(
    accepted: Sequence[int], empty: int, verify: float, draft: float
) -> None:
    costs = costs_of(measured(accepted, empty, verify, draft))
    assert costs is not None
    assert (costs.alone, costs.wire) == (PLAIN, WIRE)
    assert costs.token == pytest.approx(verify + draft, abs=1e-9)


def test_of_a_path_that_seldom_drafts_verifying_is_not_taken_to_be_free() -> None:
    """Each further token costs half a step to verify and is accepted in a third of the rounds: one is enough."""
    accepted = [0, 0, 1, 1, 4, 4]
    assert best_length(measured(accepted, 0, 0.010, 0.0)) == 1
    assert best_length(measured(accepted, 60, 0.010, 0.0)) == 1


def test_without_the_servers_times_no_length_is_chosen() -> None:
    cell = measured([2, 3], 4, 0.001, 0.001)
    untold = replace(cell.candidate_figures.server, draft_seconds=None)
    assert best_length(replace(cell, candidate_figures=replace(cell.candidate_figures, server=untold))) is None
    undrafted = replace(cell.candidate_figures, acceptance=None)
    assert best_length(replace(cell, candidate_figures=undrafted)) is None

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.evidence.config import parse_matrix
from deploy.evidence.figures import AcceptanceFigures
from deploy.evidence.measured import ServerFigures
from deploy.evidence.predicted import Predictor
from deploy.evidence.result import CellResult, Prediction, read_result
from deploy.evidence.step_model import speed_up_by_steps, step_predictions

EXAMPLE = read_result(Path(__file__).parents[3] / "docs" / "example_matrix")


def acceptance(accepted: Sequence[int]) -> AcceptanceFigures | None:
    """Of rounds that drafted four tokens each."""
    if not accepted:
        return None
    drafted, rounds = 4 * len(accepted), len(accepted)
    return AcceptanceFigures(drafted, sum(accepted), rounds, sum(accepted) / drafted, 0.0, 0.0, 0.0, ())


def cell_with(plain: ServerFigures, drafting: ServerFigures, accepted: Sequence[int]) -> CellResult:
    cell = EXAMPLE.cells[0]
    return replace(
        cell,
        baseline_figures=replace(cell.baseline_figures, server=plain),
        candidate_figures=replace(cell.candidate_figures, server=drafting, acceptance=acceptance(accepted)),
    )


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=20),
    st.integers(0, 20),
    st.tuples(*[st.floats(0.001, 0.1)] * 4),
)
def test_it_is_what_comes_of_counting_tokens_and_seconds_round_by_round(
    accepted: Sequence[int], empty: int, seconds: tuple[float, float, float, float]
) -> None:
    one, verify, draft, wire = seconds
    tokens = time = 0.0
    for of_round in [*accepted, *[None] * empty]:
        tokens += 1 if of_round is None else 1 + of_round
        time += verify if of_round is None else draft + wire + verify
    drafting = ServerFigures(
        verify_seconds=verify, draft_seconds=draft, wire_seconds=wire, rounds=len(accepted), empty_rounds=empty
    )
    cell = cell_with(ServerFigures(verify_seconds=one), drafting, accepted)
    assert speed_up_by_steps(cell) == pytest.approx(one * tokens / time)


KNOWN = ServerFigures(verify_seconds=0.03, draft_seconds=0.0, rounds=5, empty_rounds=5)


@pytest.mark.parametrize(
    ("plain", "drafting", "accepted", "reason"),
    [
        (ServerFigures(), KNOWN, [1], "told no step times"),
        (KNOWN, replace(KNOWN, verify_seconds=0.0), [1], "told no step times"),
        (KNOWN, KNOWN, [], "nothing was drafted"),
        (KNOWN, replace(KNOWN, rounds=0), [1], "did not tell its rounds"),
        (KNOWN, replace(KNOWN, draft_seconds=None), [1], "did not tell its rounds"),
    ],
)
def test_what_was_not_measured_is_named(
    plain: ServerFigures, drafting: ServerFigures, accepted: Sequence[int], reason: str
) -> None:
    cell = cell_with(plain, drafting, accepted)
    assert reason in str(speed_up_by_steps(cell))
    assert list(step_predictions([cell])) == []


def apart(predictions: Iterable[Prediction]) -> list[float]:
    """How far they are from what the example measured, as logarithms."""
    gains = {(cell.candidate, cell.condition): cell.verdict.gain for cell in EXAMPLE.cells}
    known = [(item.speed_up, gains[item.candidate, item.condition]) for item in predictions]
    return [abs(math.log(speed_up / gain.estimate)) for speed_up, gain in known if gain]


def test_of_a_real_matrix_it_is_close_to_what_was_measured() -> None:
    assert median(apart(step_predictions(EXAMPLE.cells))) < 0.15


def test_so_is_what_the_planner_reckons_within_what_it_claims() -> None:
    config = parse_matrix(EXAMPLE.config, "example").predict
    assert config is not None
    planner = Predictor(config)
    assert median(apart(planner.predictions(EXAMPLE.cells))) < math.log(1.3)

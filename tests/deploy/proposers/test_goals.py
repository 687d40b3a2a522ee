"""What is said of the goals follows from the blocks."""

from __future__ import annotations

from collections.abc import Mapping

from deploy.bench.proposers.block import Measured
from deploy.bench.proposers.goals import goals
from deploy.bench.proposers.plan import BASELINE, Cell
from deploy.bench.proposers.probe import Notes

WOBBLE = (1.00, 1.01, 0.99, 1.02, 0.98, 1.00)


def blocks(cell: Cell, speeds: Mapping[str, float], rounds: int = 6) -> list[Measured]:
    """Each arm's tokens/s in units of the baseline's, with a little noise."""
    return [
        Measured(round_, cell, arm, 100, 100 / (speed * (WOBBLE[round_] if arm != BASELINE else 1)), Notes())
        for round_ in range(rounds)
        for arm, speed in ({BASELINE: 1.0} | dict(speeds)).items()
    ]


def rows(found: list[str]) -> list[str]:
    return [line for line in found if "≥" in line]


def test_reached_and_missed_are_told_by_the_whole_interval() -> None:
    single, eight = Cell(0.0, 1, "chat"), Cell(0.0, 8, "chat")
    found = list(
        goals(
            blocks(single, {"draft_model": 1.3, "eagle": 2.0, "useless": 0.9})
            + blocks(eight, {"draft_model": 1.1, "eagle": 1.2, "useless": 0.99})
        )
    )
    best_at_1, best_at_8, draft, useless_at_1, useless_at_8 = rows(found)
    assert best_at_1.startswith("| the best proposer ≥ 1.8 × | 1 | eagle | **2.00**")
    assert best_at_1.endswith("| **reached** |")
    assert best_at_8.endswith("| **missed** |")
    assert draft.startswith("| draft_model ≥ 1.3 × | 1 | draft_model |")
    assert draft.endswith("not for certain |")
    assert (useless_at_1.split(" | ")[-1], useless_at_8.split(" | ")[-1]) == ("**missed** |", "**reached** |")
    assert (
        "Below 0.97 × lie, of the 6 speed-ups with an interval in all cells: 1 by their estimate, 1 with their whole "
        "interval:"
    ) in found
    assert "- useless: chat, temperature 0, 1 at a time, 0.90 ×" in found


def test_too_few_rounds_decide_nothing_and_a_goal_whose_cell_is_missing_is_left_out() -> None:
    found = list(goals(blocks(Cell(0.0, 8, "chat"), {"ngram": 1.5}, rounds=2)))
    (only,) = rows(found)
    assert only == "| the best proposer ≥ 1.4 × | 8 | ngram | 1.51 (2 of 5 rounds) | too few rounds |"
    assert not any("Below 0.97" in line for line in found)


def test_a_lucky_round_does_not_make_the_best_where_others_have_enough() -> None:
    cell = Cell(0.0, 8, "chat")
    found = list(goals(blocks(cell, {"ngram": 1.5}) + blocks(cell, {"eagle": 3.0}, rounds=1)))
    (best,) = rows(found)
    assert best.startswith("| the best proposer ≥ 1.4 × | 8 | ngram |")

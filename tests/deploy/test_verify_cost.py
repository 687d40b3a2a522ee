"""The price of rows, turn by turn, and what it asks of a proposer."""

from __future__ import annotations

import pytest

from deploy.bench.verify_cost import table


def test_rows_are_priced_turn_by_turn_and_a_free_draft_is_bounded_by_them() -> None:
    # The machine was twice as slow in the second half: the ratio did not move.
    single = [0.010] * 3 + [0.020] * 3
    lines = list(table({(1, 1): single, (1, 3): [1.2 * each for each in single]}))
    assert lines[2].startswith("| 1 | 1 | 15.0 (10.0 – 20.0) | 1 | – |")
    assert lines[3] == "| 1 | 3 | 18.0 (12.0 – 24.0) | 1.20 (1.20 – 1.20) | 1.25 | 1.67 | 2.08 | 2.50 | – | – |"


def test_the_interval_is_as_wide_as_the_turns_differ() -> None:
    lines = list(table({(1, 1): [0.010] * 6, (1, 2): [0.0109, 0.0112, 0.0110, 0.0112, 0.0109, 0.0110]}))
    ratio = lines[3].split(" | ")[3]
    low, high = (float(part) for part in ratio.split("(")[1].rstrip(")").split(" – "))
    assert 1.0 < low < 1.103 < high < 1.2


def test_too_few_turns_have_a_ratio_and_no_interval() -> None:
    lines = list(table({(1, 1): [0.010] * 4, (1, 2): [0.011, 0.012, 0.011, 0.012]}))
    assert lines[3].split(" | ")[3] == "1.15"


@pytest.mark.parametrize(
    ("price", "said"),
    [
        (1.1, "What 1.8 × at 1 takes of a proposer that costs nothing, as accepted length (drafts): 1.98 (1)."),
        (1.2, "1.8 × at 1 is beyond even a proposer that costs nothing."),
    ],
)
def test_what_a_goal_takes_is_said_where_a_draft_is_long_enough_for_it(price: float, said: str) -> None:
    lines = list(table({(1, 1): [0.01] * 2, (1, 2): [0.01 * price] * 2}))
    assert said in lines
    assert not any(" at 8 " in line for line in lines), "what was not measured is not spoken of"

"""Rounds walked through an answer, beside a dumb twin that serves it token by token."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from deploy.train.acceptance import Acceptance, pooled, walk


@st.composite
def answers(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    rows, depth = draw(st.integers(2, 30)), draw(st.integers(1, 4))
    agreement = np.asarray(draw(st.lists(st.booleans(), min_size=rows * depth, max_size=rows * depth)))
    return agreement.reshape(rows, depth), draw(st.integers(1, rows - 1))


def served(agreement: np.ndarray, prompt_length: int) -> tuple[int, list[int]]:
    """Commit token by token: `committed` tokens are there, the last of them has no state yet."""
    rows, depth = agreement.shape
    committed, rounds, accepted = prompt_length + 1, 0, [0] * depth
    while committed + depth <= rows:
        state = committed - 2
        count = 0
        while count < depth and agreement[state, count]:
            accepted[count] += 1
            count += 1
        rounds += 1
        committed += count + 1
    return rounds, accepted


@given(answers())
def test_the_walk_is_what_serving_would_do(answer: tuple[np.ndarray, int]) -> None:
    rounds, accepted = served(*answer)
    assert walk(*answer) == Acceptance(rounds, tuple(accepted))


def test_positions_are_unconditional_and_the_length_counts_the_targets_own_token() -> None:
    found = pooled([Acceptance(3, (3, 1)), Acceptance(1, (0, 0))], 2)
    assert found.by_position == (0.75, 0.25)
    assert found.mean_length == 2.0


def test_nothing_measured_is_no_acceptance() -> None:
    assert pooled([], 2) == Acceptance(0, (0, 0))
    assert pooled([], 2).mean_length == 1.0

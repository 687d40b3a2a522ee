"""The coupled acceptance rule on token ids alone; its distribution is tested with the sampler."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.speculation.acceptance import Acceptance, accept

tokens = st.integers(0, 2)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    drafted = draw(st.lists(tokens, max_size=6))
    return drafted, draw(st.lists(tokens, min_size=len(drafted) + 1, max_size=len(drafted) + 1))


def test_a_round_without_a_draft_commits_the_targets_one_token() -> None:
    assert accept([], [7]) == Acceptance(accepted=0, committed=(7,))


def test_the_first_disagreement_is_recovered_and_ends_the_round() -> None:
    assert accept([4, 5, 6], [4, 9, 6, 1]) == Acceptance(accepted=1, committed=(4, 9))


def test_full_acceptance_earns_the_bonus() -> None:
    assert accept([4, 5], [4, 5, 6]) == Acceptance(accepted=2, committed=(4, 5, 6))


@given(rounds())
def test_only_the_targets_own_draws_are_committed_and_only_while_their_context_is_right(
    drafted_and_target: tuple[list[int], list[int]],
) -> None:
    drafted, target = drafted_and_target
    acceptance = accept(drafted, target)
    assert 0 <= acceptance.accepted <= len(drafted)
    assert list(acceptance.committed) == target[: acceptance.accepted + 1]
    assert drafted[: acceptance.accepted] == target[: acceptance.accepted]
    assert acceptance.accepted == len(drafted) or drafted[acceptance.accepted] != target[acceptance.accepted]


@pytest.mark.parametrize("target", [[], [1], [1, 2, 3, 4]])
def test_draws_that_do_not_fit_the_proposal_are_refused(target: list[int]) -> None:
    with pytest.raises(ValueError, match="need 3 target draws"):
        accept([1, 2], target)

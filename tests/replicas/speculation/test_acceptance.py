"""The coupled acceptance rule on token ids alone; its distribution is tested with the sampler."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.speculation.acceptance import Acceptance, accept
from replicas.speculation.tree import ROOT, Draft

tokens = st.integers(0, 2)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    drafted = draw(st.lists(tokens, max_size=6))
    return drafted, draw(st.lists(tokens, min_size=len(drafted) + 1, max_size=len(drafted) + 1))


def test_a_round_without_a_draft_commits_the_targets_one_token() -> None:
    assert accept(Draft(), [7]) == Acceptance(path=(), committed=(7,))


def test_the_first_disagreement_is_recovered_and_ends_the_round() -> None:
    assert accept(Draft((4, 5, 6)), [4, 9, 6, 1]) == Acceptance(path=(0,), committed=(4, 9))


def test_full_acceptance_earns_the_bonus() -> None:
    assert accept(Draft((4, 5)), [4, 5, 6]) == Acceptance(path=(0, 1), committed=(4, 5, 6))


@given(rounds())
def test_only_the_targets_own_draws_are_committed_and_only_while_their_context_is_right(
    drafted_and_target: tuple[list[int], list[int]],
) -> None:
    drafted, target = drafted_and_target
    acceptance = accept(Draft(tuple(drafted)), target)
    assert 0 <= acceptance.accepted <= len(drafted)
    assert list(acceptance.committed) == target[: acceptance.accepted + 1]
    assert drafted[: acceptance.accepted] == target[: acceptance.accepted]
    assert acceptance.accepted == len(drafted) or drafted[acceptance.accepted] != target[acceptance.accepted]


@pytest.mark.parametrize("target", [[], [1], [1, 2, 3, 4]])
def test_draws_that_do_not_fit_the_proposal_are_refused(target: list[int]) -> None:
    with pytest.raises(ValueError, match="need 3 target draws"):
        accept(Draft((1, 2)), target)


@st.composite
def trees(draw: st.DrawFn) -> tuple[Draft, list[int]]:
    size = draw(st.integers(1, 8))
    parents = tuple(draw(st.integers(ROOT, node - 1)) for node in range(size))
    drafted = tuple(draw(tokens) for _ in range(size))
    return Draft(drafted, parents), draw(st.lists(tokens, min_size=size + 1, max_size=size + 1))


@given(trees())
def test_in_a_tree_the_longest_branch_that_the_target_would_write_is_committed(drawn: tuple[Draft, list[int]]) -> None:
    draft, target = drawn
    acceptance = accept(draft, target)

    def agreed(node: int) -> bool:
        """Written out: every node of the branch is what the target draws after its parent."""
        return node == ROOT or (agreed(draft.parent(node)) and draft.token_ids[node] == target[draft.parent(node) + 1])

    lengths = [len(draft.branch(node)) for node in range(ROOT, len(draft)) if agreed(node)]
    last = acceptance.path[-1] if acceptance.path else ROOT
    assert agreed(last)
    assert draft.branch(last) == acceptance.committed[:-1]
    assert acceptance.committed[-1] == target[last + 1]
    siblings = [child for child in range(len(draft)) if draft.parent(child) == last]
    assert all(draft.token_ids[child] != acceptance.committed[-1] for child in siblings)
    # Equal siblings are the only way to miss a longer branch.
    assert acceptance.accepted == max(lengths) or has_equal_siblings(draft)


def has_equal_siblings(draft: Draft) -> bool:
    named = [(draft.parent(node), token_id) for node, token_id in enumerate(draft.token_ids)]
    return len(set(named)) < len(named)

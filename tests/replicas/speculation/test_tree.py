"""Shapes of drafts: counts and paths name the same trees, and every cut of one is a tree."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.speculation.tree import ROOT, Draft, Tree

counts = st.lists(st.integers(1, 3), max_size=4)


def test_a_chain_is_the_tree_with_one_branch() -> None:
    assert Tree.chain(3) == Tree((ROOT, 0, 1), (0, 0, 0), (1, 2, 3))
    assert Tree.chain(0).depth == 0


@given(counts)
def test_counts_are_all_paths_of_ranks_below_them(counts: list[int]) -> None:
    paths = [
        path for depth in range(1, len(counts) + 1) for path in itertools.product(*(range(c) for c in counts[:depth]))
    ]
    assert Tree.of_counts(counts) == Tree.of_paths(paths)


@given(st.data(), counts)
def test_nodes_come_level_by_level_and_any_cut_keeps_parents_before_children(
    data: st.DataObject, counts: list[int]
) -> None:
    tree = Tree.of_counts(counts)
    cut = tree.cut(data.draw(st.integers(0, 4)))
    assert list(tree.depths) == sorted(tree.depths)
    assert cut.parents == tree.parents[: len(cut)]
    assert all(parent < node for node, parent in enumerate(cut.parents))
    assert [node for depth in range(1, cut.depth + 1) for node in cut.level(depth)] == list(range(len(cut)))
    for node in range(ROOT, len(cut)):
        children = [child for child, parent in enumerate(cut.parents) if parent == node]
        assert list(cut.children(node)) == children
        assert cut.width(node) == len(children)
    assert cut.inner_nodes == len(set(cut.parents) - {ROOT})


def test_a_path_may_skip_a_rank_and_then_needs_more_candidates_than_children() -> None:
    tree = Tree.of_paths([[0], [2], [0, 0]])
    assert (len(tree.children(ROOT)), tree.width(ROOT)) == (2, 3)


@pytest.mark.parametrize(
    ("paths", "message"),
    [([[]], "not a path"), ([[-1]], "not a path"), ([[0], [1, 0]], r"no parent \[1\]"), ([[0], [0]], "named twice")],
)
def test_what_is_no_tree_is_refused(paths: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tree.of_paths(paths)


def test_a_draft_knows_its_branches_and_depth() -> None:
    draft = Draft((5, 6, 7, 8), (ROOT, ROOT, 1, 2))
    assert draft.depth == 3
    assert [draft.branch(node) for node in range(ROOT, 4)] == [(), (5,), (6,), (6, 7), (6, 7, 8)]
    assert draft.first(3) == Draft((5, 6, 7), (ROOT, ROOT, 1))
    assert Draft((5, 6)).branch(1) == (5, 6)


@pytest.mark.parametrize("parents", [(0, ROOT), (ROOT,), (ROOT, -2), (ROOT, 1)])
def test_a_draft_whose_parents_do_not_come_first_is_not_sound(parents: tuple[int, ...]) -> None:
    assert not Draft((5, 6), parents).is_sound(10)

"""Rows that are sampled only when they count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicas.engine.block import Block, LazySamples, committed_block
from replicas.engine.sampling import Sample, Unusable
from replicas.speculation.tree import ROOT, Draft

TOKENS = st.integers(0, 3)


@st.composite
def drafts(draw: st.DrawFn) -> tuple[Draft, list[Sample | Unusable]]:
    """A tree or chain with a sample for every row, some of them unusable."""
    tokens = draw(st.lists(TOKENS, max_size=6))
    is_tree = draw(st.booleans())
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(len(tokens))] if is_tree else []
    rows = draw(st.lists(st.none() | TOKENS, min_size=len(tokens) + 1, max_size=len(tokens) + 1))
    return Draft(tuple(tokens), tuple(parents)), [Unusable.MODEL if row is None else Sample(row, None) for row in rows]


@given(drafts())
def test_sampling_only_what_counts_commits_the_same(case: tuple[Draft, list[Sample | Unusable]]):
    draft, samples = case
    asked: list[int] = []

    def sample(row: int) -> Sample | Unusable:
        asked.append(row)
        return samples[row]

    block = committed_block(draft, LazySamples(len(samples), sample))
    assert block == committed_block(draft, samples)
    if block.unusable is None:
        assert asked == [0, *(node + 1 for node in block.path)], "each once, and none behind a disagreement"


def test_without_rows_nothing_is_committed():
    assert committed_block(Draft(), LazySamples(0, lambda row: Unusable.MODEL)) == Block()

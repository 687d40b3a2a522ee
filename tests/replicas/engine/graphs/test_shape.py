from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.engine.graphs.shape import FIRST_KEYS, FREE_TOKENS, MOST_TOKENS, GraphShape, shape_of
from replicas.engine.span import Span

MANY = 10**9


def span(length: int, position: int = 0) -> Span:
    return Span(0, length, 0, position)


def test_a_step_is_padded_to_powers_of_two() -> None:
    assert shape_of([span(1), span(3, 400), span(1)], MANY) == GraphShape(4, 4, 512)
    assert shape_of([span(1, 7)], MANY) == GraphShape(1, 1, FIRST_KEYS)
    assert shape_of([span(1, 511)], MANY) == GraphShape(1, 1, 512)
    assert shape_of([span(1, 512)], MANY) == GraphShape(1, 1, 1024)


@pytest.mark.parametrize(
    ("spans", "most_places"),
    [([span(1), span(33)], MANY), ([span(32)] * 17, MANY), ([span(1, 600)] * 3, 4095)],
    ids=["a prompt's chunk", "many rows", "much to gather"],
)
def test_a_large_step_is_none_for_a_graph(spans: list[Span], most_places: int) -> None:
    assert shape_of(spans, most_places) is None


@pytest.mark.parametrize(
    "spans",
    [[span(1, 100)] * 15 + [span(20)], [span(1, 100)] * 15 + [span(1, 4000)], [span(1)] * 3 + [span(1, 1100)]],
    ids=["a chunk beside decoding", "a long context among short ones", "one of a few"],
)
def test_unequal_spans_are_not_padded_to_the_longest(spans: list[Span]) -> None:
    assert shape_of(spans, MANY) is None


def test_a_little_padding_costs_nothing() -> None:
    assert shape_of([span(1)] * 15 + [span(8)], MANY) == GraphShape(16, 8, FIRST_KEYS)
    assert shape_of([span(1)] * 15 + [span(1, FIRST_KEYS)], MANY) == GraphShape(16, 1, 2 * FIRST_KEYS)


@given(st.lists(st.tuples(st.integers(1, 32), st.integers(0, 5000)), min_size=1, max_size=64))
def test_a_step_pays_for_no_more_than_twice_the_spans_and_for_each_twice_the_rows_and_keys(
    members: list[tuple[int, int]],
) -> None:
    spans = [span(*each) for each in members]
    shape = shape_of(spans, MANY)
    if shape is None:
        return
    real_tokens, real_keys = sum(each.length for each in spans), sum(max(each.end, FIRST_KEYS) for each in spans)
    assert len(spans) <= shape.spans < 2 * len(spans)
    assert max(each.length for each in spans) <= shape.rows
    assert max(each.end for each in spans) <= shape.keys
    assert shape.tokens <= max(FREE_TOKENS, 4 * real_tokens)
    assert shape.spans * shape.keys <= 4 * real_keys


@given(st.integers(1, 64), st.integers(1, 32), st.integers(0, 5000))
def test_equal_spans_are_never_refused_for_their_padding(count: int, length: int, position: int) -> None:
    shape = shape_of([span(length, position)] * count, MANY)
    is_large = (1 << (count - 1).bit_length()) * (1 << (length - 1).bit_length()) > MOST_TOKENS
    assert (shape is None) == is_large


@given(
    st.integers(1, 32),
    st.integers(0, 3000),
    st.one_of(st.none(), st.integers(1, 4000)),
)
def test_the_keys_of_a_window_hold_all_that_a_span_sees(length: int, position: int, window: int | None) -> None:
    one = span(length, position)
    shape = shape_of([one], MANY)
    assert shape is not None
    keys = shape.keys_within(window)
    assert one.end - one.first_seen(window) <= keys <= shape.keys
    assert keys % 16 == 0

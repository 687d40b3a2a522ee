from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.engine.graphs.shape import FIRST_KEYS, GraphShape, shape_of
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

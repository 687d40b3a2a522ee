"""What rows see, beside the masks of the launched steps."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from replicas.engine.fused.view import view_of
from replicas.engine.span import Span, visibility


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    found: list[Span] = []
    for index in range(draw(st.integers(1, 3))):
        parents = tuple(draw(st.integers(-1, each - 1)) for each in range(draw(st.integers(0, 6))))
        length = draw(st.integers(0 if parents else 1, 5)) + len(parents)
        row = sum(span.length for span in found)
        found.append(Span(row, length, 50 * index, draw(st.integers(0, 20)), parents))
    return found


@given(spans(), st.none() | st.integers(1, 12))
def test_rows_see_what_the_masks_let_them(spans: list[Span], window: int | None) -> None:
    view = view_of(spans, window)
    for span in spans:
        keys = span.end - span.first_seen(window)
        mask = visibility([span], window, span.length, keys)[0]
        for row in range(span.length):
            place, before, own = view.seen[span.row + row].tolist()
            bits = int(view.sight[span.row + row])
            visible = {*range(place, place + before)} | {place + before + j for j in range(own) if bits >> j & 1}
            first = span.extent_start + span.first_seen(window)
            assert visible == {first + key for key in torch.nonzero(mask[row]).flatten().tolist()}

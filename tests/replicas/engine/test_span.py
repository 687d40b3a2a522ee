from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicas.engine.span import Span, visibility


@st.composite
def spans(draw: st.DrawFn) -> Span:
    parents = [draw(st.integers(-1, index - 1)) for index in range(draw(st.integers(0, 10)))]
    trunk = draw(st.integers(0 if parents else 1, 5))
    return Span(0, trunk + len(parents), draw(st.integers(0, 20)), draw(st.integers(0, 9)), tuple(parents))


@given(spans())
def test_sight_and_visibility_tell_the_same(span: Span) -> None:
    visible = visibility([span], None, span.length, span.end)[0]
    assert visible[:, : span.position].all()
    own = visible[:, span.position :].tolist()
    assert [[bool(bits >> column & 1) for column in range(span.length)] for bits in span.sight()] == own


def test_places_follow_those_that_are_cached() -> None:
    assert list(Span(4, 3, 100, 7).places()) == [107, 108, 109]

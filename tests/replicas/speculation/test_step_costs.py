"""The straight line through what steps cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.speculation.step_costs import Line, LineFit

samples = st.lists(st.tuples(st.integers(1, 64), st.floats(1e-5, 1)), min_size=1, max_size=50)


def test_it_finds_a_line_that_is_there() -> None:
    fit = LineFit()
    for step in range(300):
        fit.observe(1 + step % 20, 0.03 + 0.001 * (1 + step % 20))
    line = fit.line()
    assert line is not None
    assert line.fixed == pytest.approx(0.03, rel=0.01)
    assert line.slope == pytest.approx(0.001, rel=0.01)


def test_it_follows_a_load_that_changed() -> None:
    fit = LineFit()
    for factor in (1.0, 3.0):
        for step in range(500):
            fit.observe(1 + step % 8, factor * 0.01)
    line = fit.line()
    assert line is not None
    assert line.at(4) == pytest.approx(0.03, rel=0.01)


def test_sizes_that_never_differ_say_nothing_about_the_slope() -> None:
    fit = LineFit()
    for _ in range(50):
        fit.observe(5, 0.04)
    assert fit.line() == Line(pytest.approx(0.04), 0.0)


@given(samples)
def test_neither_term_is_negative_and_the_line_passes_through_the_middle(observed: list[tuple[int, float]]) -> None:
    fit = LineFit(forgetting=1.0)
    for size, seconds in observed:
        fit.observe(size, seconds)
    line = fit.line()
    assert line is not None
    assert line.fixed >= -1e-12
    assert line.slope >= 0
    mean_size = sum(size for size, _ in observed) / len(observed)
    mean_seconds = sum(seconds for _, seconds in observed) / len(observed)
    assert line.fixed + line.slope * mean_size == pytest.approx(mean_seconds)


def test_nothing_is_known_before_the_first_step() -> None:
    assert LineFit().line() is None


def test_no_size_costs_nothing() -> None:
    assert Line(1.0, 1.0).at(0) == 0.0

"""The straight line through what steps cost, and what must be tried to know it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.speculation.step_costs import ENOUGH_DRAFTS, ENOUGH_PLAIN_STEPS, OUTLIER_EVERY, BatchCosts, Line, LineFit

samples = st.lists(st.tuples(st.integers(0, 64), st.floats(1e-5, 1)), min_size=1, max_size=50)


def test_it_finds_a_line_that_is_there() -> None:
    fit = LineFit()
    for step in range(300):
        fit.observe(step % 20, 0.03 + 0.001 * (step % 20))
    assert fit.line().fixed == pytest.approx(0.03, rel=0.01)
    assert fit.line().slope == pytest.approx(0.001, rel=0.01)


def test_it_follows_a_load_that_changed() -> None:
    fit = LineFit()
    for factor in (1.0, 3.0):
        for step in range(500):
            fit.observe(step % 8, factor * 0.01)
    assert fit.line().at(4) == pytest.approx(0.03, rel=0.01)


def test_a_machine_that_gets_slower_is_not_mistaken_for_sizes_that_got_dearer() -> None:
    """One step in 50 is of size 0, and within 150 steps the machine gets slower by 30 % and faster again."""
    fit = LineFit()
    slopes = []
    for step in range(2000):
        size = 3 if step % 50 else 0
        fit.observe(size, (1 + 0.3 * math.sin(step / 150 * math.tau)) * (0.03 + 0.003 * size))
        slopes.append(fit.line().slope / fit.line().fixed)
    assert max(slopes[1000:]) < 1.5 * 0.1
    assert min(slopes[1000:]) > 0.5 * 0.1


def test_sizes_that_never_differ_say_nothing_about_the_slope() -> None:
    fit = LineFit()
    for _ in range(50):
        fit.observe(5, 0.04)
    assert fit.line().fixed == pytest.approx(0.04)
    assert fit.line().slope == 0.0


@given(samples)
def test_neither_term_is_negative(observed: list[tuple[int, float]]) -> None:
    fit = LineFit()
    for size, seconds in observed:
        fit.observe(size, seconds)
        assert fit.line().fixed >= 0
        assert fit.line().slope >= 0
    assert fit.line().at(0) <= max(seconds for _, seconds in observed) * (1 + 1e-9)


@given(st.integers(2, 200), st.integers(0, 4), st.floats(1.6, 100))
def test_one_slow_step_teaches_nothing(before: int, size: int, times: float) -> None:
    fit = LineFit()
    for step in range(before):
        fit.observe(step % 2 * 3, 0.03 + step % 2 * 0.001)
    line = fit.line()
    fit.observe(size, times * line.at(size))
    assert fit.line() == line


def test_steps_that_are_often_slow_do_not_seem_fast() -> None:
    """Two in five take 3 ms and the rest 1 ms."""
    fit = LineFit(base_forgetting=0.999)
    for step in range(100 * OUTLIER_EVERY):
        fit.observe(0, 0.003 if step % 5 in (1, 3) else 0.001)
    assert fit.line().fixed == pytest.approx(0.0018, rel=0.07)


def test_before_the_first_step_everything_seems_free() -> None:
    assert LineFit().line() == Line(0.0, 0.0)


def test_lessons_are_few_and_show_long_drafts_and_short_ones_and_steps_without() -> None:
    costs = BatchCosts()
    lessons: list[int] = []
    while (lesson := costs.lesson(4)) is not None and len(lessons) < 100:
        lessons.append(lesson)
        if lesson:
            costs.observe_draft(lesson, 0.001 + 0.002 * lesson)
        costs.observe_target(lesson, 0.04 + 0.004 * lesson)
    assert lessons == [4, 1] * (ENOUGH_DRAFTS // 2) + [0] * ENOUGH_PLAIN_STEPS
    assert costs.draft.line().at(2) == pytest.approx(0.007, rel=0.1)
    assert costs.target.line().at(2) == pytest.approx(0.048, rel=0.1)

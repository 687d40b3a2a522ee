"""When probes begin and end, and what all of them may cost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.speculation.probes import PROBE_EVERY_STEPS, PROBE_ROUNDS, PROBE_SHARE, Probes

STEPS = 1500


@settings(max_examples=30, deadline=None)
@given(st.floats(0.001, 1), st.floats(0, 2), st.lists(st.floats(0, 10), min_size=1, max_size=4), st.integers(1, 80))
def test_probes_keep_to_their_share_whatever_they_were_thought_to_cost(
    step: float, thought: float, real: list[float], answers_after: int
) -> None:
    """Of the time before them, that is: the last one may have cost more than anybody could know."""
    probes = Probes()
    earned = spent = 0.0
    tries: list[bool] = []
    for number in range(STEPS):
        spent_before = spent
        tries.append(probes.try_now(step, thought))
        if not tries[-1]:
            earned += step
        elif len(tries) < 2 or not tries[-2]:
            assert spent_before <= PROBE_SHARE * (earned + step) + 1e-9, "it began before the last ones were paid off"
        if tries[-1] and all(tries[-answers_after:]):
            cost = real[number % len(real)]
            probes.spend(cost)
            probes.count_round()
            spent += cost


def test_a_free_probe_begins_after_the_least_number_of_steps_and_lasts_its_rounds() -> None:
    probes = Probes()
    tries = []
    for _ in range(2 * (PROBE_EVERY_STEPS + PROBE_ROUNDS)):
        tries.append(probes.try_now(0.03, 0.0))
        if tries[-1]:
            probes.count_round()
    cycle = [False] * (PROBE_EVERY_STEPS - 1) + [True] * PROBE_ROUNDS
    assert tries[: 2 * len(cycle)] == cycle * 2


def test_a_probe_that_is_not_answered_ends() -> None:
    probes = Probes()
    tries = [probes.try_now(0.03, 0.0) for _ in range(2 * PROBE_EVERY_STEPS)]
    assert sum(tries) == PROBE_EVERY_STEPS


def test_drafting_that_pays_ends_a_probe() -> None:
    probes = Probes()
    while not probes.try_now(0.03, 0.0):
        pass
    probes.stop()
    assert not probes.is_probing
    assert not probes.try_now(0.03, 0.0)

"""Growth is told from noise, and every container of ours is seen."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.bench.growth import SLOPE_SLACK, Reading, container_sizes, grown, memory_slope
from replicas.speculation.messages import Closing, SequenceVerdict
from replicas.speculation.ngram import NgramProposer
from tests.replicas.speculation.test_target_session import OPENING, opened, session_with

FLAT = Reading(0, {"Engine._sequences": 0, "Timer._rounds": 8}, 500 * 2**20, 40)


def readings_of(memory_mib: Sequence[float], requests: int = 24) -> list[Reading]:
    return [
        replace(FLAT, requests=requests * turn, memory_bytes=int(500 * 2**20 + mib * 2**20))
        for turn, mib in enumerate(memory_mib, start=1)
    ]


def with_sizes(name: str, sizes: Sequence[int]) -> list[Reading]:
    return [replace(FLAT, requests=24 * turn, sizes={name: size}) for turn, size in enumerate(sizes)]


def test_an_idle_process_that_only_wavers_has_not_grown() -> None:
    readings = [
        replace(reading, descriptors=40 + turn % 3)
        for turn, reading in enumerate(readings_of((-300, 0, 7, 2, 9, 4, 1, 8, 3)))
    ]
    assert grown(readings) == []


def test_a_warm_up_and_one_later_jump_of_the_allocator_are_not_a_trend() -> None:
    assert grown(readings_of((0, 90, 140, 150, 150, 151, 150, 150, 182, 182, 182))) == []


def test_a_steady_rise_that_comes_to_little_is_the_allocators() -> None:
    assert grown(readings_of([0.5 * turn for turn in range(10)])) == []


@settings(max_examples=30)
@given(st.lists(st.floats(-1.0, 1.0), min_size=9, max_size=16), st.floats(0.1, 10.0))
def test_a_planted_leak_is_found_beneath_the_noise(noise: list[float], leaked_mib: float) -> None:
    """A tenth of a MiB kept by each request, and above."""
    leaking = [wobble + 24 * leaked_mib * turn for turn, wobble in enumerate(noise)]
    slope = memory_slope(readings_of(leaking))
    assert slope.low > SLOPE_SLACK
    assert slope.low <= slope.estimate <= slope.high
    assert len(grown(readings_of(leaking))) == 1


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(6, 16))
def test_memory_that_wavers_by_some_mebibytes_is_hardly_ever_accused(seed: int, turns: int) -> None:
    dice = random.Random(seed)
    runs = [readings_of([dice.uniform(0, 6) for _ in range(turns)]) for _ in range(20)]
    assert sum(bool(grown(run)) for run in runs) <= 3


def test_the_slope_is_given_for_a_thousand_requests() -> None:
    slope = memory_slope(readings_of([2.0 * turn for turn in range(9)], requests=10))
    assert (slope.estimate, slope.low, slope.high) == pytest.approx((200.0, 200.0, 200.0))


def test_a_container_that_filled_up_early_and_stayed_so_has_not_grown() -> None:
    assert grown(with_sizes("Timer._rounds", (0, 3, 5, 8, 8, 8, 8, 8))) == []


def test_a_container_that_is_larger_than_it_ever_was_early_on_has_grown() -> None:
    assert grown(with_sizes("Ledger._lives", (0, 1, 2, 2, 3, 3, 4, 5))) == ["Ledger._lives holds 5 elements, 3 earlier"]


def test_a_bounded_memory_of_texts_may_hold_more_at_the_end() -> None:
    assert grown(with_sizes("Occurrences._latest", (90, 80, 95, 70, 88, 80, 90, 110))) == []


def test_memory_and_descriptors_that_rise_turn_by_turn_have_grown() -> None:
    readings = [
        replace(reading, descriptors=40 + turn) for turn, reading in enumerate(readings_of([20 * n for n in range(12)]))
    ]
    memory, descriptors = grown(readings)
    assert memory == "memory rises by 833 MiB in 1,000 requests (833 – 833)"
    assert descriptors == "open descriptors rose from 44 to 50"


def test_growth_needs_enough_readings() -> None:
    with pytest.raises(ValueError, match="six readings or more, not in 5"):
        grown([FLAT] * 5)


def test_what_a_session_and_a_proposer_keep_for_a_sequence_is_counted_and_gone_once_it_is_closed() -> None:
    session, ngram = session_with(), NgramProposer(1, 2)
    before = container_sizes((session, ngram))
    opened(session)
    ngram.open(OPENING)
    during = container_sizes((session, ngram))
    assert during["TargetSession._sequences"] == 1
    assert during["Tracked.token_ids"] == len(OPENING.token_ids)
    assert during["NgramProposer._sequences"] >= 1
    session.settle([SequenceVerdict(1, 5, 3, 0, (7,), 4)], 0.0)
    for keeper in (session, ngram):
        keeper.close(Closing((1,), "done"))
    assert container_sizes((session, ngram)) == before


def test_containers_within_containers_count_and_cycles_end() -> None:
    @dataclass
    class Node:
        """As if it were of this project."""

        queue: deque[int] = field(default_factory=deque)
        parts: dict[int, list[int]] = field(default_factory=dict)
        other: Node | None = None

    Node.__module__ = "replicas.made_up"
    node = Node(deque([1, 2]), {1: [1, 2, 3], 2: []})
    node.other = node
    assert container_sizes((node,)) == {"Node.queue": 2, "Node.parts": 5}

"""Growth is told from noise, and every container of ours is seen."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import pytest

from deploy.bench.growth import Reading, container_sizes, grown
from replicas.speculation.messages import Closing, SequenceVerdict
from replicas.speculation.ngram import NgramProposer
from tests.replicas.speculation.test_target_session import OPENING, opened, session_with

FLAT = Reading({"Engine._sequences": 0, "Timer._rounds": 8}, 500 * 2**20, 40)


def test_an_idle_process_that_only_wavers_has_not_grown() -> None:
    readings = [
        replace(FLAT, memory_bytes=FLAT.memory_bytes + wobble * 2**20, descriptors=40 + wobble % 3)
        for wobble in (-300, 0, 7, 2, 9, 4, 1, 8)
    ]
    assert grown(readings) == []


def test_a_container_that_filled_up_early_and_stayed_so_has_not_grown() -> None:
    readings = [replace(FLAT, sizes={"Timer._rounds": size}) for size in (0, 5, 8, 8, 8, 8)]
    assert grown(readings) == []


def test_a_container_that_is_larger_than_it_ever_was_early_on_has_grown() -> None:
    readings = [replace(FLAT, sizes={"Ledger._lives": size}) for size in (0, 1, 2, 2, 3, 4)]
    assert grown(readings) == ["Ledger._lives holds 4 elements, 2 earlier"]


def test_memory_and_descriptors_that_rise_turn_by_turn_have_grown() -> None:
    readings = [replace(FLAT, memory_bytes=(500 + 20 * turn) * 2**20, descriptors=40 + turn) for turn in range(10)]
    memory, descriptors = grown(readings)
    assert memory == "memory rose from 540 to 660 MiB"
    assert descriptors == "open descriptors rose from 42 to 48"


def test_growth_needs_enough_readings() -> None:
    with pytest.raises(ValueError, match="four readings or more, not in 3"):
        grown([FLAT] * 3)


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

"""The verify benchmark drives real streams to real processes."""

from __future__ import annotations

import pytest

from deploy.bench.verify_rpc import TURN, codec_seconds, measure


@pytest.mark.slow
def test_both_streams_are_timed_in_turns_and_their_processes_end() -> None:
    ours, bare = measure(sequences=2, rounds=TURN, pause_seconds=0.0)
    assert 0 < len(ours) <= TURN
    assert len(bare) == TURN
    assert min(*ours, *bare) > 0


def test_the_codec_costs_more_for_more_sequences() -> None:
    assert codec_seconds(64, repetitions=50) > codec_seconds(1, repetitions=50) > 0

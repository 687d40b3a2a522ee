"""Kept journals, replayed: every decision, clock and number is what it was then, bit for bit."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from canary.events import RolloutStarted, Ticked, WindowClosed
from canary.history import tell
from canary.record import plan_of, read_record
from canary.rollout import advance
from canary.rollout_state import Rollout, begin
from canary.simulation import Simulation, simulate

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*.jsonl.gz"))
LARGEST_BYTES = 300_000


def test_there_are_fixtures():
    assert FIXTURES


@pytest.fixture(params=FIXTURES, ids=[file.name.partition(".")[0] for file in FIXTURES])
def fixture(request: pytest.FixtureRequest) -> Path:
    return request.param


@functools.cache
def simulated(fixture: Path) -> Simulation:
    """The record once more, by its own events alone; a long one takes seconds."""
    return simulate(read_record(fixture))


def test_the_recorded_events_lead_to_the_recorded_states_weights_and_words(fixture):
    record = read_record(fixture)
    assert isinstance(record[0].event, RolloutStarted)
    rollout: Rollout | None = None
    for then in record:
        before, event = rollout, then.event
        if isinstance(event, RolloutStarted):
            rollout = begin(event)
        else:
            assert rollout is not None
            rollout, _ = advance(rollout, event)
        assert (rollout.state.value, rollout.weight, rollout.attempt) == (then.state, then.weight, then.attempt)
        assert tell(before, event, rollout) == then.summary


ENDS = {
    "aa": ("promoted", 100.0, ""),
    "slow-draft": ("rolled_back", 0.0, "itl_p95"),
    "simulated-slow": ("rolled_back", 0.0, "itl_p95"),
}


def test_twins_were_promoted_and_slow_drafts_taken_back(fixture):
    record = read_record(fixture)
    state, weight, guardrail = ENDS[fixture.name.partition(".")[0]]
    for found in (record[-1], simulated(fixture).simulated[-1]):
        assert (found.state, found.weight) == (state, weight)
    arrival = next(then for then in reversed(record) if isinstance(then.event, WindowClosed | Ticked))
    assert f"{state} ({guardrail}" in arrival.summary


def test_simulated_by_its_own_plan_it_ends_as_it_did(fixture):
    record, found = read_record(fixture), simulated(fixture)
    assert found.parted is None
    assert found.simulated == found.recorded
    assert simulate(record, plan_of(record)) == found


def test_a_fixture_is_small_and_has_windows_of_both_arms(fixture):
    assert fixture.stat().st_size <= LARGEST_BYTES
    windows = [then.event.window for then in read_record(fixture) if isinstance(then.event, WindowClosed)]
    assert sum(window.stable.assigned for window in windows) > 50
    assert sum(window.canary.assigned for window in windows) > 50

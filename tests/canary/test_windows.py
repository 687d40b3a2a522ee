from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.stats.binomial import Count
from canary.windows import ArmUsage, AtClose, Hearing, OpenWindow, cancellations, failures, hearing
from fleet.traffic import Outcome, PathTally, RouterReport
from tests.canary.events_strategy import tallies


def report(compared: dict[str, PathTally]) -> RouterReport:
    return RouterReport("r", 1, 1, compared, compared, control=compared)


deltas = st.lists(st.dictionaries(st.sampled_from(["baseline", "speculative"]), tallies), max_size=6)


@settings(max_examples=20, deadline=None)
@given(deltas, st.randoms())
def test_deltas_add_up_to_the_same_window_in_whatever_order_they_come(found, shuffler):
    shuffled = list(found)
    shuffler.shuffle(shuffled)
    windows = []
    for order in (found, shuffled):
        window = OpenWindow(1.0, 5.0)
        for delta in order:
            window.add(report(delta))
        windows.append(window.close(3.0, "baseline", "speculative", AtClose()))
    first, second = windows
    for tally, twin in ((first.stable, second.stable), (first.canary, second.canary)):
        assert tally.itl.counts == twin.itl.counts
        assert tally.outcomes == twin.outcomes
        assert tally.acceptance_by == twin.acceptance_by
        assert tally.request_acceptance.counts == twin.request_acceptance.counts
        assert abs(tally.itl.sum - twin.itl.sum) < 1e-9


@settings(max_examples=20, deadline=None)
@given(deltas)
def test_an_open_window_survives_the_journal(found):
    window = OpenWindow(1.25, 5.0)
    for delta in found:
        window.add(report(delta))
    window.look("baseline", ArmUsage(looks=1, samples=2, saturated=1, pressed=1, gpus=4.0))
    assert OpenWindow.from_json(json.loads(json.dumps(window.to_json()))) == window


def test_a_window_without_deltas_is_empty_and_knows_its_length():
    window = OpenWindow(10.0, 25.0).close(40.5, "baseline", "speculative", AtClose())
    assert (window.seconds, window.canary_percent) == (30.5, 25.0)
    assert window.canary == PathTally()
    assert hearing(window.canary, 0) == Hearing.IDLE


@pytest.mark.parametrize(
    "tally",
    [
        PathTally(assigned=1, outcomes={Outcome.DONE: 1}),
        PathTally(assigned=1, outcomes={Outcome.FAILED: 1}),
        PathTally(output_tokens=1),
    ],
    ids=["it answered", "it refused", "one token of a request that goes on"],
)
def test_an_arm_is_heard_whether_or_not_its_requests_end(tally):
    assert hearing(tally, 4) == Hearing.HEARD


def test_an_arm_is_silent_once_requests_waited_for_a_whole_window():
    assert hearing(PathTally(assigned=3), 3) == Hearing.WAITED_FOR, "all three came while the window was open"
    assert hearing(PathTally(assigned=3), 4) == Hearing.SILENT, "one was there before"
    assert hearing(PathTally(), 1) == Hearing.SILENT


def test_clients_that_give_up_are_no_sign_of_life():
    gone = PathTally(assigned=2, outcomes={Outcome.CANCELLED: 2, Outcome.TIMED_OUT: 1})
    assert hearing(gone, 1) == Hearing.SILENT, "two were there when it began, and one is there when it ends"
    assert hearing(gone, 0) == Hearing.WAITED_FOR, "nobody waits any more"
    charged = PathTally(assigned=1, stalled=2)
    charged.itl.add(1.5, 2)
    assert hearing(charged, 2) == Hearing.SILENT, "what is charged for a stream's silence was not heard of it"


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
def test_silence_is_what_a_list_of_requests_shows(before, came, gave_up):
    waiting = ["before"] * before + ["came"] * came
    left = waiting[:gave_up]
    tally = PathTally(assigned=came, outcomes={Outcome.CANCELLED: len(left)})
    is_silent = before > 0 and len(waiting) > len(left)
    assert (hearing(tally, len(waiting) - len(left)) == Hearing.SILENT) == is_silent


def test_what_a_path_did_not_finish_itself_is_its_failure():
    tally = PathTally(
        fallbacks=2,
        outcomes={
            Outcome.DONE: 10,
            Outcome.FAILED: 1,
            Outcome.TIMED_OUT: 1,
            Outcome.TRUNCATED: 1,
            Outcome.CANCELLED: 3,
            Outcome.SHED: 50,
        },
    )
    assert failures(tally) == Count(5, 16)


def test_a_request_that_fell_back_and_failed_is_counted_once_at_most():
    assert failures(PathTally(fallbacks=3, outcomes={Outcome.FAILED: 3})) == Count(3, 3)


def test_what_an_earlier_version_did_not_write_is_nothing():
    old = PathTally(assigned=3, outcomes={"done": 3}).to_json()
    for name in ("newcomers", "waiting", "silence", "stall", "acceptance_by"):
        del old[name]
    assert PathTally.from_json(old) == PathTally(assigned=3, outcomes={"done": 3})
    window = OpenWindow.from_json({"opened": 1.0, "canary_percent": 5.0, "tallies": {"baseline": old}})
    assert (window.control, window.usage) == ({}, {})


def test_a_client_that_leaves_is_counted_apart_from_failures():
    tally = PathTally(outcomes={Outcome.DONE: 6, Outcome.CANCELLED: 2, Outcome.FAILED: 1, Outcome.SHED: 9})
    assert cancellations(tally) == Count(2, 9)


def test_requests_completed_elsewhere_are_no_capacity_of_the_path():
    window = OpenWindow(0.0, 50.0)
    window.add(report({"speculative": PathTally(outcomes={Outcome.DONE: 10}, fallbacks=4)}))
    window.look("speculative", ArmUsage(looks=1, samples=2, gpus=2.0))
    window.look("speculative", ArmUsage(looks=1, samples=4, gpus=4.0))
    closed = window.close(30.0, "baseline", "speculative", AtClose(open_requests={"speculative": 5}))
    usage = closed.canary_usage
    assert (usage.completed, usage.samples, usage.mean_gpus, usage.open_requests) == (6, 6, 3.0, 5)

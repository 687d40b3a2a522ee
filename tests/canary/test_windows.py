from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from canary.stats.binomial import Count
from canary.windows import OpenWindow, failures, has_signal
from fleet.traffic import Outcome, PathTally
from tests.canary.events_strategy import tallies

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
            window.add(delta)
        windows.append(window.close(3.0, "baseline", "speculative", 0))
    first, second = windows
    for tally, twin in ((first.stable, second.stable), (first.canary, second.canary)):
        assert tally.itl.counts == twin.itl.counts
        assert tally.outcomes == twin.outcomes
        assert tally.request_acceptance.counts == twin.request_acceptance.counts
        assert abs(tally.itl.sum - twin.itl.sum) < 1e-9


@settings(max_examples=20, deadline=None)
@given(deltas)
def test_an_open_window_survives_the_journal(found):
    window = OpenWindow(1.25, 5.0)
    for delta in found:
        window.add(delta)
    assert OpenWindow.from_json(json.loads(json.dumps(window.to_json()))) == window


def test_a_window_without_deltas_is_empty_and_knows_its_length():
    window = OpenWindow(10.0, 25.0).close(40.5, "baseline", "speculative", 3)
    assert (window.seconds, window.canary_percent, window.canary_in_flight) == (30.5, 25.0, 3)
    assert window.canary == PathTally()
    assert not has_signal(window.canary)


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

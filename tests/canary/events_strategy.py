"""Random but well-formed rollout events, for properties that must hold in any order of them."""

from __future__ import annotations

from hypothesis import strategies as st

from canary.events import (
    CapacityChanged,
    Event,
    HardTripped,
    OperatorAborted,
    OperatorPaused,
    OperatorPromoted,
    OperatorResumed,
    OperatorRetried,
    OperatorSetWeight,
    RolloutStarted,
    SplitApplied,
    Ticked,
    WindowClosed,
)
from canary.windows import ArmUsage, Window
from fleet.traffic import HardTrip, HardTripKind, Outcome, PathTally
from tests.canary.world import plan


def tally(requests: int, *, itl: float = 0.03, failed: int = 0, acceptance: float | None = None) -> PathTally:
    """So many ended requests of twenty tokens each, one of which takes half as long again."""
    found = PathTally(assigned=requests)
    if requests:
        found.outcomes = {Outcome.DONE: requests - failed, Outcome.FAILED: failed}
        found.itl.add(itl, requests * 19)
        found.itl.add(itl * 1.5, requests)
    if acceptance is not None and requests:
        found.request_acceptance.add(1.0 + acceptance, requests)
    return found


def window(
    canary: PathTally, stable: PathTally, *, percent: float = 5.0, still_open: tuple[int, int] = (0, 0)
) -> Window:
    """A window that closed with so many requests open, the canary's first."""
    of_canary, of_stable = (ArmUsage(open_requests=count) for count in still_open)
    return Window(2.0, percent, stable, canary, of_stable, of_canary)


tallies = st.builds(
    lambda requests, itl, failures, acceptance: tally(
        requests, itl=itl, failed=min(requests, failures), acceptance=acceptance
    ),
    st.integers(0, 12),
    st.sampled_from([0.01, 0.03, 0.09]),
    st.sampled_from([0, 0, 0, 1, 12]),
    st.sampled_from([None, 0.1, 0.7, 0.9]),
)
windows = st.builds(
    window,
    tallies,
    tallies,
    percent=st.sampled_from([5.0, 50.0, 95.0]),
    still_open=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)


def _makers() -> list[st.SearchStrategy[Event]]:
    at = st.just(0.0)
    trips = st.builds(
        HardTrip, st.sampled_from(["baseline", "speculative"]), st.sampled_from(HardTripKind), st.just("x")
    )
    return [
        st.builds(CapacityChanged, at, st.integers(0, 2), st.just(2)),
        st.builds(SplitApplied, at, st.just(2), st.just(1), st.just(0.1)),
        st.builds(SplitApplied, at, st.just(2), st.just(1), st.just(0.1)),
        st.builds(WindowClosed, at, windows),
        st.builds(WindowClosed, at, windows),
        st.builds(Ticked, at),
        st.builds(Ticked, at),
        st.builds(HardTripped, at, trips),
        st.builds(OperatorPaused, at),
        st.builds(OperatorResumed, at),
        st.builds(OperatorPromoted, at, st.booleans()),
        st.builds(OperatorAborted, at, st.sampled_from(["", "because"])),
        st.builds(OperatorSetWeight, at, st.floats(0, 100)),
        st.builds(OperatorRetried, at),
    ]


histories = st.lists(st.tuples(st.floats(0.0, 30.0), st.one_of(_makers())), max_size=40)
"""(seconds since the event before, event); `timed` gives each event its moment."""
plans = st.builds(
    lambda holdback, last_step: plan(holdback=holdback, last_step=last_step, min_requests=2, min_windows=1),
    st.sampled_from([0, 5]),
    st.sampled_from(["non_inferior", "no_harm"]),
)
starts = st.builds(RolloutStarted, st.just(0.0), st.just("speculative-1"), plans)

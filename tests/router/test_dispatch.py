"""The life of a request over fake replicas: queue, route, go on elsewhere, end; and what is charged to whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

from fleet.errors import (
    BadRequest,
    DeadlineExceeded,
    FleetError,
    OutOfMemory,
    Overloaded,
    ReplicaLost,
    Unavailable,
)
from fleet.generation import SamplingParams
from fleet.traffic import Eligibility, HardTripKind, PathTally, SamplingMode, Split, WinningCell
from router.failover import MAX_FAILURES
from router.intake import AnswerStyle, Api, Job
from router.split import RequestFacts
from tests.fakes import FakeBackend, FakeControl, Fault, ManualClock, expected_text
from tests.router.served import Router, dispatcher_over

MakeRouter = Callable[..., Router]


@pytest.fixture(autouse=True, scope="module")
def _short_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("router.failover.FIRST_PAUSE_SECONDS", 0.0001)
        yield


def job(tokens: int = 8, n: int = 1, seed: int = 5) -> Job:
    return Job("req", ((1, 2, 3),), n, SamplingParams(seed=seed, max_tokens=tokens), AnswerStyle(Api.CHAT))


def facts(**headers: str) -> RequestFacts:
    return RequestFacts("req", prompt_tokens=3, max_tokens=8, is_greedy=False, headers=headers)


async def texts(router: Router, asked: Job, **headers: str) -> list[str]:
    written = [""] * asked.choices
    async with router.dispatcher.serve(asked, facts(**headers)) as serving, aclosing(serving.chunks()) as arrivals:
        async for arrived in arrivals:
            router.clock.advance(0.01)
            for choice, chunk in arrived:
                written[choice] += chunk.text
    return written


def compared(router: Router, path: str) -> PathTally:
    tally = router.tally(path)["compared"]
    assert isinstance(tally, PathTally)
    return tally


async def test_a_request_is_served_by_the_path_that_the_split_gives(make_router: MakeRouter) -> None:
    router = make_router()
    assert await texts(router, job()) == [expected_text(5, 0, 8)]
    router.route(100)
    assert await texts(router, job()) == [expected_text(5, 0, 8)]
    assert router.backend.paths_used() == ["baseline", "speculative"]
    tally = compared(router, "speculative")
    assert (tally.assigned, tally.outcomes, tally.output_tokens, tally.fallbacks) == (1, {"done": 1}, 8, 0)
    assert tally.newcomers == 1


async def test_a_reader_that_fell_behind_gets_all_that_is_there_at_once(make_router: MakeRouter) -> None:
    router = make_router()
    async with router.dispatcher.serve(job(), facts()) as serving, aclosing(serving.chunks()) as arrivals:
        first = await anext(arrivals)
        await asyncio.sleep(0.05)
        rest = [arrived async for arrived in arrivals]
    assert len(first) + sum(map(len, rest)) == 8, "every engine step stays a chunk of its own"
    assert max(map(len, rest)) > 1


async def test_all_choices_run_at_once_and_each_has_its_own_noise(make_router: MakeRouter) -> None:
    router = make_router()
    assert await texts(router, job(n=3)) == [expected_text(5, choice, 8) for choice in range(3)]
    assert len({request.request_id for _, request in router.backend.started}) == 3


LOSSES: list[FleetError] = [
    ReplicaLost("died", replica="a:1"),
    OutOfMemory("no memory left"),
    Unavailable("no replica"),
    Overloaded("engine queue full"),
]


@pytest.mark.parametrize("error", LOSSES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("after_tokens", [0, 1, 5])
async def test_a_canary_that_fails_at_any_token_goes_on_on_stable_unseen_and_is_charged(
    make_router: MakeRouter, error: FleetError, after_tokens: int
) -> None:
    router = make_router()
    router.route(100)
    router.backend.faults["speculative"] = Fault(after_tokens, error)
    assert await texts(router, job(n=2)) == [expected_text(5, 0, 8), expected_text(5, 1, 8)]
    assert router.backend.paths_used() == ["speculative", "speculative", "baseline", "baseline"]
    resumed = router.backend.started[2][1]
    assert resumed.sampling.seed == 5
    assert (len(resumed.resume.token_ids) if resumed.resume else 0) == after_tokens
    tally = compared(router, "speculative")
    assert (tally.fallbacks, tally.outcomes, tally.output_tokens) == (1, {"done": 1}, 16)
    assert "baseline" not in router.tally("baseline")["report"].compared  # type: ignore[attr-defined]
    assert router.backend.open == set()


async def test_a_stable_stream_goes_on_on_another_stable_replica(make_router: MakeRouter) -> None:
    router = make_router()
    router.backend.faults["baseline"] = Fault(3, ReplicaLost("died", replica="a:1"), times=2)
    assert await texts(router, job()) == [expected_text(5, 0, 8)]
    assert router.backend.paths_used() == ["baseline"] * 3


async def test_a_stream_that_falls_silent_is_taken_for_lost_and_goes_on(make_router: MakeRouter) -> None:
    router = make_router(stall_timeout_s=0.05)
    router.route(100)
    router.backend.faults["speculative"] = Fault(4)
    assert await texts(router, job()) == [expected_text(5, 0, 8)]
    assert compared(router, "speculative").fallbacks == 1


async def test_a_stable_path_that_never_recovers_gives_the_stream_up(
    make_router: MakeRouter,
) -> None:
    router = make_router()
    router.route(0)
    router.backend.faults["baseline"] = Fault(0, ReplicaLost("died"))
    with pytest.raises(ReplicaLost, match="died"):
        await texts(router, job())
    assert len(router.backend.started) == MAX_FAILURES + 1
    assert compared(router, "baseline").outcomes == {"failed": 1}


async def test_a_stream_that_breaks_for_good_after_its_first_token_is_truncated(
    make_router: MakeRouter,
) -> None:
    router = make_router()
    router.route(0)
    router.backend.faults["baseline"] = Fault(0, ReplicaLost("died"))
    router.backend.faults["speculative"] = Fault(2, ReplicaLost("died"))
    with pytest.raises(ReplicaLost):
        await texts(router, job(), **{"x-fleet-path": "speculative"})
    served = router.tally("speculative")["served"]
    assert isinstance(served, PathTally)
    assert served.outcomes == {"truncated": 1}


async def test_a_request_that_takes_too_long_is_timed_out_and_cancelled_at_the_replica(
    make_router: MakeRouter,
) -> None:
    router = make_router(request_timeout_s=0.05)
    router.route(100)
    router.backend.faults["speculative"] = Fault(2)
    with pytest.raises(DeadlineExceeded, match=r"0.05 s"):
        await texts(router, job())
    assert compared(router, "speculative").outcomes == {"timed_out": 1}
    assert router.backend.open == set()


async def test_a_client_that_leaves_cancels_every_choice_at_once(make_router: MakeRouter) -> None:
    router = make_router()
    router.route(100)
    router.backend.faults["speculative"] = Fault(2)
    reading = asyncio.create_task(texts(router, job(n=3)))
    while len(router.backend.open) < 3:  # noqa: ASYNC110 - the fake has no event for this
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert router.backend.open == set()
    tally = compared(router, "speculative")
    assert tally.outcomes == {"cancelled": 1}
    assert tally.fallbacks == 0


async def test_out_of_memory_on_the_canary_stops_its_traffic_in_this_router_at_once(make_router: MakeRouter) -> None:
    router = make_router()
    router.route(100)
    router.backend.faults["speculative"] = Fault(1, OutOfMemory("tried to allocate 9 GiB"))
    await texts(router, job())
    assert router.dispatcher.current.split.canary_percent == 0
    assert router.dispatcher.has_tripped.is_set()
    await texts(router, job())
    assert router.backend.paths_used() == ["speculative", "baseline", "baseline"]
    report = router.tally("speculative")["report"]
    assert [(trip.path, trip.kind) for trip in report.hard_trips] == [("speculative", HardTripKind.OOM)]  # type: ignore[attr-defined]


async def test_three_canary_replicas_lost_are_a_crash_loop_and_stable_ones_are_not(make_router: MakeRouter) -> None:
    router = make_router()
    router.route(100)
    for number in range(3):
        assert router.dispatcher.current.split.canary_percent == 100
        router.backend.faults["speculative"] = Fault(1, ReplicaLost("died", replica=f"a:{number}"))
        await texts(router, job())
    assert router.dispatcher.current.split.canary_percent == 0
    for number in range(4):
        router.backend.faults["baseline"] = Fault(1, ReplicaLost("died", replica=f"b:{number}"), times=1)
        await texts(router, job())
    report = router.tally("speculative")["report"]
    assert [trip.kind for trip in report.hard_trips] == [HardTripKind.CRASH_LOOP]  # type: ignore[attr-defined]


async def test_beyond_the_limit_requests_wait_and_beyond_the_queue_they_are_turned_away(
    make_router: MakeRouter,
) -> None:
    router = make_router(max_in_flight=1, max_queued=1)
    router.backend.faults["baseline"] = Fault(1, times=1)
    holding = asyncio.create_task(texts(router, job()))
    while not router.backend.open:  # noqa: ASYNC110 - the fake has no event for this
        await asyncio.sleep(0)
    waiting = asyncio.create_task(texts(router, job()))
    await asyncio.sleep(0)
    assert router.dispatcher.queued == 1
    with pytest.raises(Overloaded) as caught:
        await texts(router, job())
    assert caught.value.retry_after_seconds >= 1
    holding.cancel()
    assert await waiting == [expected_text(5, 0, 8)]
    served = router.tally("baseline")["served"]
    assert isinstance(served, PathTally)
    assert served.outcomes == {"shed": 1, "cancelled": 1, "done": 1}
    assert served.assigned == 2


async def test_waiting_in_the_queue_ends_too(make_router: MakeRouter) -> None:
    router = make_router(max_in_flight=1, max_queued=5, queue_timeout_s=0.02)
    router.backend.faults["baseline"] = Fault(1, times=1)
    holding = asyncio.create_task(texts(router, job()))
    while not router.backend.open:  # noqa: ASYNC110 - the fake has no event for this
        await asyncio.sleep(0)
    with pytest.raises(Overloaded, match=r"within 0.02 s"):
        await texts(router, job())
    assert router.dispatcher.queued == 0
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    assert await texts(router, job()) == [expected_text(5, 0, 8)]


async def test_a_stream_that_waits_in_the_router_says_so_in_its_queue_time(make_router: MakeRouter) -> None:
    router = make_router(max_in_flight=1)
    router.route(0)
    router.backend.faults["baseline"] = Fault(1, times=1)
    holding = asyncio.create_task(texts(router, job()))
    while not router.backend.open:  # noqa: ASYNC110 - the fake has no event for this
        await asyncio.sleep(0)
    waiting = asyncio.create_task(texts(router, job()))
    await asyncio.sleep(0)
    router.clock.advance(2.5)
    holding.cancel()
    await waiting
    assert compared(router, "baseline").queue.quantile(1.0) == pytest.approx(2.5, rel=0.02)


async def test_the_override_header_decides_and_is_kept_out_of_the_comparison(make_router: MakeRouter) -> None:
    router = make_router()
    router.route(0)
    await texts(router, job(), **{"x-fleet-path": "speculative"})
    assert router.backend.paths_used() == ["speculative"]
    tally = router.tally("speculative")
    assert tally["compared"] is None
    assert isinstance(tally["served"], PathTally)
    with pytest.raises(BadRequest, match="x-fleet-path"):
        await texts(router, job(), **{"x-fleet-path": "warp"})
    assert router.dispatcher.ledger.in_flight == {}


@given(
    faults=st.lists(st.tuples(st.sampled_from(["baseline", "speculative"]), st.integers(0, 6)), max_size=4),
    bursts=st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
def test_the_text_is_the_same_whatever_breaks_and_however_it_is_chunked(
    faults: Iterable[tuple[str, int]], bursts: tuple[int, int]
) -> None:
    async def run() -> str:
        backend = FakeBackend(bursts=dict(zip(("baseline", "speculative"), bursts, strict=True)))
        for path, after in faults:
            backend.faults[path] = Fault(after, ReplicaLost("died"), times=2)
        clock = ManualClock()
        router = Router(Starlette(), dispatcher_over(backend, clock), backend, FakeControl(), clock)
        router.route(100)
        return (await texts(router, job(tokens=12)))[0]

    assert asyncio.run(run()) == expected_text(5, 0, 12)


async def test_the_router_follows_the_load_of_the_canary_and_bounds_its_drafts(make_router: MakeRouter) -> None:
    router = make_router()
    cell = WinningCell(SamplingMode.SAMPLED, above=0, up_to=2, draft_length=3)
    router.dispatcher.current.adopt(
        Split(9, "baseline", "speculative", 100.0, "s", Eligibility(cells=(cell,))), knows_of_trips=True
    )
    for elsewhere, asked, served, bound in (
        (0, None, "speculative", 3),
        (1, 2, "speculative", 2),
        (2, None, "baseline", None),
    ):
        router.dispatcher.current.note_elsewhere({"speculative": elsewhere})
        await texts(router, replace(job(), num_speculative_tokens=asked))
        path, request = router.backend.started[-1]
        assert (path, request.num_speculative_tokens) == (served, bound)

"""What the controller hears, and which split the router follows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fleet.errors import OutOfMemory
from fleet.traffic import Split
from router.reporter import Reporter
from tests.fakes import Fault
from tests.router.served import Router

MakeRouter = Callable[..., Router]


async def test_the_router_reports_and_follows_the_split_while_it_lives(make_router: MakeRouter) -> None:
    router = make_router(report_interval_s=0.001)
    router.control.split = Split(5, "baseline", "speculative", 100.0, salt="s")
    async with router.app.router.lifespan_context(router.app):
        while router.dispatcher.current.version < 5:  # noqa: ASYNC110 - the app has no event for this
            await asyncio.sleep(0.001)
        async with router.http() as http:
            await http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
    assert router.backend.paths_used() == ["speculative"]
    done = [report.compared["speculative"].outcomes for report in router.control.reports if report.compared]
    assert {"done": 1} in done, "the last report is sent when the router stops"


async def test_a_trip_is_reported_at_once_and_only_a_controller_that_knows_of_it_ends_it(
    make_router: MakeRouter,
) -> None:
    router = make_router()
    router.route(100)
    reporter = Reporter(router.dispatcher, router.control, interval_seconds=60)
    router.backend.faults["speculative"] = Fault(0, OutOfMemory("no memory"))
    router.control.is_away = True
    assert not await reporter.exchange()
    async with router.http() as http:
        await http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
    router.control.is_away = False
    router.control.split = Split(router.dispatcher.current.version + 1, "baseline", "speculative", 50, salt="s")
    assert await reporter.exchange()
    first, second = router.control.reports
    assert (first.hard_trips, len(second.hard_trips)) == ((), 1)
    assert router.dispatcher.current.split.canary_percent == 0, "that split was issued before the trip was known"
    router.control.split = Split(router.dispatcher.current.version + 1, "baseline", "speculative", 5, salt="s")
    assert await reporter.exchange()
    assert router.dispatcher.current.split.canary_percent == 5


async def test_while_the_controller_is_away_the_split_stands(make_router: MakeRouter) -> None:
    router = make_router()
    router.route(40)
    reporter = Reporter(router.dispatcher, router.control, interval_seconds=60)
    router.control.is_away = True
    for _ in range(3):
        assert not await reporter.exchange()
    assert router.dispatcher.current.split.canary_percent == 40


async def test_delivering_brings_also_what_came_after_an_outstanding_report(make_router: MakeRouter) -> None:
    router = make_router()
    reporter = Reporter(router.dispatcher, router.control, interval_seconds=60)
    router.control.is_away = True
    await reporter.deliver()
    async with router.http() as http:
        await http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
    router.control.is_away = False
    await reporter.deliver()
    assert [set(report.served) for report in router.control.reports] == [set(), {"baseline"}]

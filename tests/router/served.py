"""A router under test, with everything around it in reach."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
from openai import AsyncOpenAI
from starlette.applications import Starlette

from fleet.config import RouterConfig
from fleet.traffic import Split
from router.dispatch import Dispatcher, RouterIdentity
from tests.fakes import FakeBackend, FakeControl, ManualClock

PATHS = frozenset({"baseline", "speculative"})


def dispatcher_over(backend: FakeBackend, clock: ManualClock, **settings: object) -> Dispatcher:
    identity = RouterIdentity("router-1", PATHS, "baseline")
    return Dispatcher(backend, RouterConfig.model_validate(settings), identity, clock)


@dataclass
class Router:
    app: Starlette
    dispatcher: Dispatcher
    backend: FakeBackend
    control: FakeControl
    clock: ManualClock

    def route(self, percent: float) -> None:
        """Adopt a split with that share for the canary, as if the controller had sent it."""
        split = Split(self.dispatcher.current.version + 1, "baseline", "speculative", percent, salt="s")
        self.control.split = split
        self.dispatcher.current.adopt(split, knows_of_trips=True)

    def tally(self, path: str) -> dict[str, object]:
        """What the router would report of a path now, without reporting it."""
        report = self.dispatcher.ledger.next_report(self.clock.monotonic(), applied_split=0, queued=0)
        self.dispatcher.ledger.acknowledge(report.sequence)
        return {"compared": report.compared.get(path), "served": report.served.get(path), "report": report}

    def http(self, **options: object) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://router", **options)  # type: ignore[arg-type]

    def openai(self, api_key: str = "none") -> AsyncOpenAI:
        return AsyncOpenAI(api_key=api_key, base_url="http://router/v1", http_client=self.http(), max_retries=0)

"""The dashboard on its stage: the real router app on a real port, over a real controller whose fleet is simulated."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette

from canary.controller import Controller
from fleet.config import RouterConfig
from fleet.tokenizer import Tokenizer
from fleet.traffic import ReportReply, RouterReport
from router.http_api import build_app
from router.intake import ServedModel
from tests.canary.world import Router, World, replica
from tests.fakes import FakeBackend, ManualClock
from tests.router.served import dispatcher_over

TOKEN = "dashboard-secret"
POSITIONS = (0.78, 0.6, 0.46, 0.34)
"""Share of the rounds that accept the draft up to this token."""


class InProcess:
    """`router.backend.Control` over a controller in this event loop."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def _controller(self) -> Controller:
        return self._world.controller

    async def report(self, report: RouterReport) -> ReportReply:
        return self._controller.report(report)

    async def command(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._controller.command(name, arguments)

    async def status(self) -> Mapping[str, Any]:
        return self._controller.status()

    async def metrics(self) -> bytes:
        return self._controller.metrics()


@dataclass
class FullWorld(World):
    """A world whose requests also have first tokens and drafts at every position, and whose drafts have a health."""

    routers: int = 1
    draft: str = "healthy"
    fingerprint: tuple[tuple[str, str], ...] = ()
    """What every replica says that it depends on."""

    def serve(self, router: Router) -> None:
        super().serve(router)
        for path, tally in router.compared.items():
            for _ in range(sum(tally.outcomes.values()) - tally.ttft.total):
                tally.ttft.add(0.12 + 0.004 * (tally.ttft.total % 20))
            if self.behaviours[path].acceptance is not None:
                tally.accepted_at = {place: round(share * tally.rounds) for place, share in enumerate(POSITIONS)}

    def report_replicas(self) -> None:
        for path, count in self.replicas.items():
            health = self.draft if self.paths[path].is_speculative else "none"
            for number in range(count):
                name = f"{path}-{self.generation}-{number}"
                report = replica(path, name, draft=health, kv_used_tokens=412, fingerprint=self.fingerprint)
                self.controller.replica_report(report)


def stage_app(world: World, tokenizer: Tokenizer, **settings: object) -> Starlette:
    """The router app as `deploy` builds it, but for the controller, which is the world's."""
    model = ServedModel("tiny", "/models/tiny", max_model_len=256, created=1_700_000_000)
    dispatcher = dispatcher_over(FakeBackend(), ManualClock(), **settings)
    return build_app(dispatcher, tokenizer, InProcess(world), model, RouterConfig.model_validate(settings))


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    """The app over HTTP while the context is open, by its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()

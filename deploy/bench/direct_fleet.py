"""A fleet without Ray: the real router and controller over HTTP in this process, its workers reached by token socket.

Only placement is missing, so other people's tools can be run against it within seconds.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.types import ASGIApp

from canary.controller import Controller
from canary.plan import PathFacts
from fleet.clock import SystemClock
from fleet.config import ControllerConfig, RouterConfig
from fleet.generation import GenerationRequest, TokenChunk
from fleet.traffic import ReportReply, RouterReport
from router.dispatch import Dispatcher, RouterIdentity
from router.http_api import build_app
from router.intake import ServedModel
from router.token_client import TokenClient

if TYPE_CHECKING:
    from fleet.tokenizer import Tokenizer

HOST = "127.0.0.1"
POLL_SECONDS = 0.01


class DirectBackend:
    """`router.backend.Backend` with one worker for each path, by its "host:port"."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._clients = {path: TokenClient(address) for path, address in addresses.items()}

    def replicas(self, path: str) -> int:
        return int(path in self._clients)

    async def generate(self, path: str, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        async with aclosing(self._clients[path].generate(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()


class DirectControl:
    """`router.backend.Control` of a controller in the same event loop."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def report(self, report: RouterReport) -> ReportReply:
        return self._controller.report(report)

    async def command(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._controller.command(name, arguments)

    async def status(self) -> Mapping[str, Any]:
        return self._controller.status()

    async def metrics(self) -> bytes:
        return self._controller.metrics()


@dataclass(frozen=True, slots=True)
class DirectFleet:
    """What is to be served, and by whom."""

    tokenizer: Tokenizer
    model: ServedModel
    addresses: Mapping[str, str]
    """Path -> token socket of its worker."""
    stable: str
    journal: Path
    router: RouterConfig = field(default_factory=RouterConfig)

    @asynccontextmanager
    async def app(self) -> AsyncIterator[ASGIApp]:
        """The router's app, with the controller ticking while the context is open."""
        controller = Controller.open(
            ControllerConfig(journal=str(self.journal)),
            paths={path: PathFacts(1, is_speculative=path != self.stable) for path in self.addresses},
            stable=self.stable,
            model_name=self.model.name,
            clock=SystemClock(),
        )
        backend = DirectBackend(self.addresses)
        identity = RouterIdentity(uuid.uuid4().hex[:12], frozenset(self.addresses), self.stable, os.getpid())
        dispatcher = Dispatcher(backend, self.router, identity, SystemClock())
        ticking = asyncio.create_task(controller.run())
        try:
            yield build_app(dispatcher, self.tokenizer, DirectControl(controller), self.model, self.router)
        finally:
            ticking.cancel()
            with suppress(asyncio.CancelledError):
                await ticking
            await backend.close()
            controller.close()


@asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[str]:
    """Serve an app on a free port of this machine; the URL it answers at."""
    server = uvicorn.Server(uvicorn.Config(app, host=HOST, port=0, log_level="warning", lifespan="on"))
    serving = asyncio.create_task(server.serve())
    try:
        while not server.started:
            if serving.done():
                serving.result()
            await asyncio.sleep(POLL_SECONDS)  # uvicorn tells nobody when it has started
        yield f"http://{HOST}:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving

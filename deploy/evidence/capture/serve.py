"""Runs the capture: a relay that people point some of their traffic at, for a time, and then a file."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from deploy.bench.asking import open_http
from deploy.evidence.capture.relay import Relay
from deploy.evidence.capture.reservoir import Reservoirs
from deploy.evidence.capture.sealed import write_slice
from fleet.clock import SystemClock
from fleet.errors import ConfigError

SAVE_SECONDS = 30.0
UPSTREAM_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """One capture."""

    upstream: str
    host: str
    port: int
    per_bucket: int
    max_bytes: int
    seconds: float
    file: Path
    key: str | None


def capture(plan: CapturePlan, on_start: Callable[[], None], on_trouble: Callable[[str], None]) -> Reservoirs:
    """Relay until the time is up or Ctrl-C; the file is written every half minute and at the end.

    Where it cannot be written meanwhile, that is told, and what is relayed goes on; at the end it is a `ConfigError`.
    """
    reservoirs = Reservoirs(plan.per_bucket, random.Random(), plan.max_bytes)
    write_slice(plan.file, (), plan.key)  # a key or a folder that does not do is found out now
    try:
        with suppress(KeyboardInterrupt):  # the usual way to end a capture
            asyncio.run(_relay(plan, reservoirs, on_start, on_trouble))
    finally:
        write_slice(plan.file, reservoirs.requests(), plan.key)
    return reservoirs


async def _relay(
    plan: CapturePlan, reservoirs: Reservoirs, on_start: Callable[[], None], on_trouble: Callable[[str], None]
) -> None:
    clock = SystemClock()
    app = Relay(open_http(plan.upstream, UPSTREAM_SECONDS), reservoirs, clock).app()
    server = uvicorn.Server(uvicorn.Config(app, plan.host, plan.port, log_level="warning", access_log=False))
    ends = clock.monotonic() + plan.seconds
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve())
        on_start()
        while not serving.done() and (left := ends - clock.monotonic()) > 0:
            await asyncio.wait([serving], timeout=min(SAVE_SECONDS, left))
            try:
                # In a thread, as encrypting and the disk take a while; what is kept by now, for more goes on coming.
                await asyncio.to_thread(write_slice, plan.file, tuple(reservoirs.requests()), plan.key)
            except ConfigError as error:
                on_trouble(str(error))
        server.should_exit = True

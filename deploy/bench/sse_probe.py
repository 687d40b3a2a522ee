"""How late do stamped tokens arrive? A reader of event streams that costs so little that it hardly counts itself."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.errors import ReplicaLost

_STAMP = re.compile(rb"@(\d+) ")
_END = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Arrivals:
    """The tokens of one stream, in nanoseconds of the machine's monotonic clock."""

    emitted: list[int] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)


async def read_stream(host: str, port: int, path: str, headers: Mapping[str, str], body: object) -> Arrivals:
    """POST the JSON body and read the answer to its end. Raises `ReplicaLost` where it breaks off before `[DONE]`."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Arrivals] = loop.create_future()
    payload = json.dumps(body).encode()
    lines = {"host": f"{host}:{port}", "content-type": "application/json", "content-length": str(len(payload))}
    head = "".join(f"{name}: {value}\r\n" for name, value in {**lines, **headers, "connection": "close"}.items())
    request = f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + payload
    transport, _ = await loop.create_connection(lambda: _Reader(request, done), host, port)
    try:
        return await done
    finally:
        transport.close()


class _Reader(asyncio.Protocol):
    """Finds the stamps in what arrives; an event that is cut in two waits for its rest."""

    def __init__(self, request: bytes, done: asyncio.Future[Arrivals]) -> None:
        self._request = request
        self._done = done
        self._rest = b""
        self._arrivals = Arrivals()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        seen = self._rest + data
        used = 0
        for match in _STAMP.finditer(seen):
            self._arrivals.emitted.append(int(match[1]))
            self._arrivals.arrived.append(now)
            used = match.end()
        self._rest = seen[used:][-256:]
        if _END in self._rest and not self._done.done():
            self._done.set_result(self._arrivals)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(ReplicaLost(f"the stream ended early: {exc or self._rest!r}"))

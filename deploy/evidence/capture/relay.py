"""Passes requests on to a server, unchanged and at once, and keeps a sample of what passes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from deploy.evidence.capture.observed import Observed
from deploy.evidence.capture.reservoir import CapturedRequest, LeftOut, Reservoirs
from fleet.clock import Clock

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"
NO_CAPTURE = "x-fleet-capture"
"""A client that sends this header with `off` is not captured."""
HOP_HEADERS = frozenset(
    {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade", "accept-encoding"}
)


class Relay:
    """One upstream server, and the reservoirs that its requests are offered to."""

    def __init__(self, http: httpx.AsyncClient, reservoirs: Reservoirs, clock: Clock) -> None:
        self._http = http
        self._reservoirs = reservoirs
        self._clock = clock
        self._started = clock.monotonic()

    def app(self) -> Starlette:
        """The relay as an ASGI app; it closes the HTTP client when it ends."""

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            async with self._http:
                yield

        methods = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"]
        return Starlette(routes=[Route("/{path:path}", self._pass, methods=methods)], lifespan=lifespan)

    async def _pass(self, request: Request) -> Response:
        body = await request.body()
        observed = self._observed(request, body)
        # Not compressed, so that the answer can be read as it passes.
        headers = [(name, value) for name, value in request.headers.items() if name not in HOP_HEADERS]
        headers.append(("accept-encoding", "identity"))
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        try:
            outgoing = self._http.build_request(request.method, target, headers=headers, content=body)
            answer = await self._http.send(outgoing, stream=True)
        except httpx.TransportError as error:
            return JSONResponse({"error": {"message": f"the upstream server does not answer: {error}"}}, 502)
        # Afterwards, so that the end of the answer waits for nothing.
        keep = None if observed is None else BackgroundTask(self._keep, answer, observed)
        response = StreamingResponse(_stream(answer, observed), answer.status_code, background=keep)
        response.raw_headers = [
            (name.lower(), value) for name, value in answer.headers.raw if name.decode().lower() not in HOP_HEADERS
        ]
        return response

    def _observed(self, request: Request, body: bytes) -> Observed | None:
        """What will be kept of the request, once it is answered; None where nothing will, which is counted."""
        if request.url.path not in (CHAT_PATH, COMPLETION_PATH):
            return None
        if request.headers.get(NO_CAPTURE, "").lower() == "off":
            self._reservoirs.leave_out(LeftOut.UNWILLING)
            return None
        if request.url.path == COMPLETION_PATH:
            self._reservoirs.leave_out(LeftOut.COMPLETION)
            return None
        return Observed(body, self._clock.monotonic() - self._started)

    async def _keep(self, answer: httpx.Response, observed: Observed) -> None:
        """Scrubbing a long request takes a while: in a thread, so that the streams go on."""
        found: CapturedRequest | LeftOut = LeftOut.UNFINISHED
        if answer.is_success:
            found = await asyncio.to_thread(observed.request, uuid.uuid4().hex)
        if isinstance(found, CapturedRequest):
            self._reservoirs.offer(found)
        else:
            self._reservoirs.leave_out(found)


async def _stream(answer: httpx.Response, observed: Observed | None) -> AsyncIterator[bytes]:
    try:
        async for data in answer.aiter_raw():
            if observed is not None:
                observed.feed(data)
            yield data
    finally:
        await answer.aclose()

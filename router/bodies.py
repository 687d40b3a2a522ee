"""The body of a request: is it JSON, short enough, and does it arrive fast enough?"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from fleet.config import RouterConfig

MAX_BODY_BYTES = 16 * 2**20
LONG_BODY_BYTES = 16_384
"""From here on parsing and tokenizing take long enough to delay other streams, and move to a thread."""
MEDIA_TYPE = re.compile(r"application/json\s*(;.*)?", re.IGNORECASE | re.DOTALL)

Meaning = TypeVar("Meaning")


class BodyReader:
    """Reads bodies within bounds of size and time.

    The deadline is `body_timeout_s`, extended by each byte as `body_min_bytes_per_s` says: a long upload that keeps
    going has all the time it needs, and one that drips a byte now and then holds its connection no longer than its
    size is worth.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._timeout_seconds = config.body_timeout_s
        self._bytes_per_second = config.body_min_bytes_per_s

    async def json(self, request: Request) -> bytes:
        """The raw body of a request that says it is plain JSON; 415 otherwise, and as `raw`."""
        if not MEDIA_TYPE.fullmatch(request.headers.get("content-type", "").strip()):
            raise HTTPException(415, "send the body as JSON, with 'Content-Type: application/json'")
        return await self.raw(request)

    async def raw(self, request: Request) -> bytes:
        """The raw body; 415 where it is compressed, 413 as soon as it is too long, 408 where it comes too slowly."""
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise HTTPException(415, f"send the body as it is: Content-Encoding {encoding[:40]!r} is not supported")
        body = bytearray()
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(began + self._timeout_seconds) as guard:
                async for part in request.stream():
                    body += part
                    if len(body) > MAX_BODY_BYTES:
                        raise _too_long()
                    guard.reschedule(began + self._timeout_seconds + len(body) / self._bytes_per_second)
        except TimeoutError:
            raise HTTPException(
                408, f"the body came too slowly: {len(body)} bytes so far", {"connection": "close"}
            ) from None
        return bytes(body)


async def understood(raw: bytes, read: Callable[[bytes], Meaning]) -> Meaning:
    """`read(raw)`, where it holds nobody up."""
    if len(raw) < LONG_BODY_BYTES:
        return read(raw)
    return await asyncio.to_thread(read, raw)


def _too_long() -> HTTPException:
    return HTTPException(413, f"the body is longer than {MAX_BODY_BYTES} bytes", {"connection": "close"})

"""Which token streams have come and gone, for those who wait for their ends."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

REMEMBERED_ENDS = 4096
"""Ended streams that are still known, for waiters that come late."""


@dataclass(slots=True)
class _Life:
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class StreamLedger:
    """Begin, end and waiting for both, by request id; belongs to one event loop."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        """Streams that are open, or awaited before they have begun."""
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self, request_id: str) -> None:
        self._open += 1
        self._idle.clear()
        self._lives.setdefault(request_id, _Life()).begun.set()

    def end(self, request_id: str) -> None:
        """End a stream that has begun."""
        self._lives.pop(request_id).ended.set()
        self._ended[request_id] = None
        if len(self._ended) > REMEMBERED_ENDS:
            self._ended.popitem(last=False)
        self._open -= 1
        if self._open == 0:
            self._idle.set()

    async def finished(self, request_id: str, arrive_within_seconds: float) -> None:
        """Return when the stream has ended, or when it has not even begun in time."""
        if request_id not in self._ended:
            life = self._lives.setdefault(request_id, _Life())
            try:
                if await _is_set_within(life.begun, arrive_within_seconds):
                    await life.ended.wait()
            finally:
                if not life.begun.is_set():
                    del self._lives[request_id]
        self._ended.pop(request_id, None)

    async def wait_idle(self, seconds: float) -> bool:
        """Whether no stream is open, waiting for it up to so long."""
        return await _is_set_within(self._idle, seconds)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    if event.is_set():  # wait_for(…, 0) would not even look
        return True
    try:
        return await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False

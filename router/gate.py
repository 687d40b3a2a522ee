"""Where requests wait for their turn: the admission queue, awaited."""

from __future__ import annotations

import asyncio

from fleet.clock import Clock
from fleet.config import RouterConfig
from fleet.errors import Overloaded
from router.admission import Admission, AdmissionQueue


class Gate:
    """Lets requests in by `AdmissionQueue`'s rules. Every `enter` is followed by one `leave`, whatever happens."""

    def __init__(self, config: RouterConfig, clock: Clock) -> None:
        self._queue = AdmissionQueue(config.max_in_flight, config.max_queued)
        self._timeout_seconds = config.queue_timeout_s
        self._clock = clock
        self._turns: dict[str, asyncio.Event] = {}

    @property
    def queued(self) -> int:
        return self._queue.queued

    async def enter(self, request_id: str, streams: int) -> None:
        """Wait for `streams` free streams; Overloaded when the queue is full or the wait too long."""
        admission = self._queue.arrive(request_id, streams, self._clock.monotonic())
        if admission is Admission.ADMITTED:
            return
        if admission is Admission.REFUSED:
            raise self._overloaded("the server is at its limit and its queue is full")
        turn = self._turns[request_id] = asyncio.Event()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await turn.wait()
        except TimeoutError as error:
            raise self._overloaded(f"no slot came free within {self._timeout_seconds:g} s") from error
        finally:
            del self._turns[request_id]

    def leave(self, request_id: str) -> None:
        """The request is over, or gave up waiting; those it made room for go on."""
        for admitted in self._queue.leave(request_id, self._clock.monotonic()):
            # Absent only where its own wait has just ended in a timeout; it leaves again next.
            turn = self._turns.get(admitted)
            if turn is not None:
                turn.set()

    def _overloaded(self, message: str) -> Overloaded:
        return Overloaded(message, retry_after_seconds=self._queue.retry_after_seconds())

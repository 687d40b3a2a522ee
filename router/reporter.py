"""Keeps the controller informed and learns the split from it: the router's one background task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fleet.errors import FleetError
from fleet.traffic import COMMIT_SECONDS
from router.backend import Control
from router.dispatch import Dispatcher

_LOG = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""A controller that takes longer to store a report counts as away; the report is sent again."""
DELIVERIES = 4


class Reporter:
    """Sends a report every interval, and at once after a hard trip. While the controller is away the split stands."""

    def __init__(self, dispatcher: Dispatcher, control: Control, interval_seconds: float) -> None:
        self._dispatcher = dispatcher
        self._control = control
        self._interval_seconds = interval_seconds
        self._is_away = False

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self.exchange()
            await self._pause()

    async def exchange(self) -> bool:
        """Send what is due, the outstanding report first; whether the controller took it all.

        A trip that happened while a report was outstanding goes into the next, which follows at once.
        """
        for _ in range(2):
            if not await self._send():
                return False
            if not self._dispatcher.ledger.has_trips:
                break
        return True

    async def deliver(self) -> None:
        """Report until the controller has stored all that was seen before this call; gives up where it is away."""
        for _ in range(DELIVERIES):
            # An outstanding report was cut earlier: what came since is only in the next one.
            is_news = not self._dispatcher.ledger.has_outstanding
            if not await self._send():
                return
            if self._dispatcher.ledger.has_outstanding:
                await asyncio.sleep(COMMIT_SECONDS)
            elif is_news:
                return

    async def _send(self) -> bool:
        dispatcher = self._dispatcher
        report = dispatcher.ledger.next_report(
            dispatcher.clock.monotonic(), applied_split=dispatcher.current.version, queued=dispatcher.queued
        )
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reply = await self._control.report(report)
        except (FleetError, TimeoutError) as error:
            self._note_presence(False, error)
            return False
        self._note_presence(True)
        dispatcher.ledger.acknowledge(reply.acknowledged)
        dispatcher.current.note_elsewhere(reply.open_elsewhere)
        # The reply to a report with a trip was made knowing of it; one that crossed the trip was not.
        dispatcher.current.adopt(reply.split, knows_of_trips=not dispatcher.ledger.has_trips)
        return True

    async def _pause(self) -> None:
        urgent = self._dispatcher.has_tripped
        try:
            async with asyncio.timeout(self._interval_seconds):
                await urgent.wait()
            urgent.clear()
        except TimeoutError:
            return

    def _note_presence(self, is_present: bool, error: BaseException | None = None) -> None:
        if is_present == self._is_away:
            self._is_away = not is_present
            if error is None:
                _LOG.info("the controller is back")
            else:
                _LOG.warning(
                    "no controller (%s): the split of version %d stands", error, self._dispatcher.current.version
                )


@asynccontextmanager
async def running(reporter: Reporter) -> AsyncIterator[None]:
    """Report in the background while the context is open, and once more at its end."""
    task = asyncio.create_task(reporter.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await reporter.exchange()

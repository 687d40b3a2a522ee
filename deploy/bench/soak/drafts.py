"""Whose draft dies? One in this process, so that what it holds can be counted, or a process that is killed."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from typing import Protocol

from deploy.bench.proposers.arms import start_draft
from fleet.clock import SystemClock
from fleet.errors import DraftUnavailable
from replicas.draft_loop import DraftLoop
from replicas.draft_model import load_draft
from replicas.draft_worker import DraftIdentity, DraftSettings, DraftWorker
from replicas.speculation.proposer import ProposerHealth
from replicas.target_worker import TargetWorker

CONNECT_SECONDS = 60.0


class DraftLife(Protocol):
    """A draft worker that can be brought and taken away, again and again."""

    async def bring(self) -> None:
        """Return once the target drafts with it. Raises ConfigError and DraftUnavailable."""

    async def take(self) -> None:
        """At once, in the middle of whatever it does; safe to repeat."""

    def roots(self) -> Iterator[object]:
        """What of it is in this process."""


class InnerDraft:
    """A draft worker in this process's event loop; the model stays loaded."""

    def __init__(self, settings: DraftSettings) -> None:
        """Loads the model. Raises ConfigError."""
        self._draft = load_draft(settings.model, settings.speculative, settings.engine)
        self._address = settings.verify_address
        self._worker: DraftWorker | None = None

    async def bring(self) -> None:
        loop = DraftLoop(self._draft.engine, self._draft.limits, SystemClock())
        self._worker = DraftWorker(loop, DraftIdentity(self._draft.hello, self._address))
        await self._worker.wait_connected(CONNECT_SECONDS)

    async def take(self) -> None:
        if self._worker is not None:
            await self._worker.close()
            self._worker = None

    def roots(self) -> Iterator[object]:
        yield from (self._draft, self._worker)


class KilledDraft:
    """A draft worker in a process of its own, which goes by SIGKILL."""

    def __init__(self, settings: DraftSettings, target: TargetWorker) -> None:
        self._settings = settings
        self._target = target
        self._process: subprocess.Popen[bytes] | None = None

    async def bring(self) -> None:
        self._process = start_draft(self._settings)
        await self._until_connected(True)

    async def take(self) -> None:
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
            self._process = None
            await self._until_connected(False)

    def roots(self) -> Iterator[object]:
        return iter(())

    async def _until_connected(self, wanted: bool) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                while (self._target.report("soak").draft != ProposerHealth.LOST) != wanted:
                    if self._process is not None and self._process.poll() is not None:
                        raise DraftUnavailable(f"the draft process ended with exit code {self._process.returncode}")
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            heard = "did not connect" if wanted else "was killed, which the target did not notice"
            raise DraftUnavailable(f"the draft process {heard} within {CONNECT_SECONDS:.0f} s") from error

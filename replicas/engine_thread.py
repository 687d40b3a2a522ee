"""The engine in a thread of its own: commands go in from any thread, outputs come out once a step."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol, cast

from fleet.generation import FailureKind, GenerationRequest, StepOutput
from replicas.engine.loop import Engine, EngineStats, Outputs

Command = Callable[[Engine], None]

logger = logging.getLogger(__name__)


class Receiver(Hashable, Protocol):
    """Owner of requests, in the event loop; compared by identity."""

    def take(self, outputs: list[StepOutput]) -> None:
        """Everything that one step has for this owner."""


class EngineThread:
    """Steps the engine while it has work, and sleeps otherwise; hands outputs over with one call per step."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        """`loop` is where the receivers live."""
        self._engine = engine
        self._loop = loop
        self._commands: SimpleQueue[Command | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def stats(self) -> EngineStats:
        return self._engine.stats

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, request: GenerationRequest, owner: Receiver, *, is_probe: bool = False) -> None:
        self._commands.put(lambda engine: engine.submit(request, owner, is_probe=is_probe))

    def cancel(self, owner: Receiver, request_ids: Iterable[str]) -> None:
        ids = tuple(request_ids)
        self._commands.put(lambda engine: engine.cancel(owner, ids))

    def cancel_owner(self, owner: Receiver) -> None:
        self._commands.put(lambda engine: engine.cancel_owner(owner))

    def fail_all(self, kind: FailureKind, message: str) -> None:
        self._commands.put(lambda engine: engine.fail_all(kind, message))

    def stop(self) -> None:
        """End after the commands given so far and one more step; returns when the thread has ended. Blocks."""
        self._commands.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_stopping = False
        while not is_stopping:
            is_stopping = self._obey()
            if self._engine.has_work:
                self._step()

    def _obey(self) -> bool:
        """Carry out the waiting commands, or wait for one while there is nothing else to do; True at the stop."""
        may_wait = not self._engine.has_work
        while True:
            try:
                command = self._commands.get(block=may_wait)
            except Empty:
                return False
            if command is None:
                return True
            command(self._engine)
            may_wait = False

    def _step(self) -> None:
        try:
            outputs = self._engine.step()
        except Exception:
            logger.exception("a step failed")
            self._engine.fail_all(FailureKind.INTERNAL, "the step failed; the replica's log has the details")
            outputs = {}
        if outputs:
            self._loop.call_soon_threadsafe(_hand_out, outputs)


def _hand_out(outputs: Outputs) -> None:
    for owner, items in outputs.items():
        cast(Receiver, owner).take(items)

"""The draft worker: loads a model that proposes, and serves one target for as long as it lives."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import uvloop
from pydantic import TypeAdapter, ValidationError

from fleet.clock import Clock, SystemClock
from fleet.config import DrillConfig, EngineConfig, ModelConfig, SpeculativeConfig, TlsConfig, explain
from fleet.errors import ConfigError, DraftUnavailable, ProtocolViolation
from replicas.draft_loop import DraftLoop, Send, SessionBegan, SessionEnded, Stop
from replicas.draft_model import load_draft
from replicas.drill import spoil
from replicas.speculation.messages import DraftMessage, Hello, Welcome
from replicas.verify_rpc.client import VerifyStream, dial

FIRST_CONNECTION_SECONDS = 120.0
"""The target may still be loading when its draft first dials."""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """Everything a draft worker needs to know."""

    model: ModelConfig
    """The target's."""
    speculative: SpeculativeConfig
    engine: EngineConfig
    verify_address: str
    """Where the target listens, "host:port"."""
    drill: DrillConfig | None = None


@dataclass(frozen=True, slots=True)
class DraftIdentity:
    """How the worker introduces itself, and to whom."""

    hello: Hello
    verify_address: str
    tls: TlsConfig | None = None
    drill: DrillConfig = field(default_factory=DrillConfig)


class DraftWorker:
    """A drafting thread and the stream that feeds it. Redials for ever until closed."""

    def __init__(self, loop: DraftLoop, identity: DraftIdentity) -> None:
        self._draft_loop = loop
        self._identity = identity
        self._connected = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="draft")
        self._drafting = asyncio.get_running_loop().run_in_executor(self._thread, loop.run)
        self._dialling = asyncio.create_task(self._dial_for_ever())

    @classmethod
    async def start(cls, settings: DraftSettings, clock: Clock | None = None) -> DraftWorker:
        """Load the draft and join its target.

        Raises ConfigError when the model is unusable or the target refuses it, DraftUnavailable when the target
        cannot be reached in time.
        """
        draft = await asyncio.to_thread(load_draft, settings.model, settings.speculative, settings.engine)
        loop = DraftLoop(draft.engine, draft.limits, clock or SystemClock())
        identity = DraftIdentity(
            draft.hello, settings.verify_address, settings.speculative.tls, settings.drill or DrillConfig()
        )
        worker = cls(loop, identity)
        try:
            await worker.wait_connected(FIRST_CONNECTION_SECONDS)
        except BaseException:
            await worker.close()
            raise
        return worker

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    async def wait_connected(self, seconds: float) -> None:
        """Return once a target has said Welcome. Raises ConfigError (refused) and DraftUnavailable (not in time)."""
        connected = asyncio.create_task(self._connected.wait())
        try:
            await asyncio.wait({connected, self._dialling}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            connected.cancel()
        if self._dialling.done():
            self._dialling.result()
        if not self.is_connected:
            raise DraftUnavailable(f"no target at {self._identity.verify_address} within {seconds:.0f} s")

    async def wait_closed(self) -> None:
        """Return when the worker was closed; raise what ended it otherwise."""
        await asyncio.wait({self._drafting, self._dialling}, return_when=asyncio.FIRST_COMPLETED)
        for ended in (self._drafting, self._dialling):
            if ended.done() and not ended.cancelled():
                ended.result()

    async def close(self) -> None:
        """End the stream and the thread; safe to repeat."""
        self._dialling.cancel()
        self._draft_loop.put(Stop())
        await asyncio.wait({self._drafting, self._dialling})
        self._thread.shutdown()

    async def _dial_for_ever(self) -> None:
        pause, was_welcome = FIRST_PAUSE_SECONDS, False
        while True:
            try:
                identity = self._identity
                async with dial(identity.verify_address, identity.hello, identity.tls) as (stream, welcome):
                    logger.info("drafting for %s at %s", welcome.model, identity.verify_address)
                    pause, was_welcome = FIRST_PAUSE_SECONDS, True
                    await self._serve(stream, welcome)
            except (DraftUnavailable, ProtocolViolation) as error:
                logger.info("%s; dialling again in %.1f s", error, pause)
            except ConfigError:
                # A target that took this draft once was replaced by another; the next one may fit again.
                if not was_welcome:
                    raise
                logger.exception("refused after a reconnection")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _serve(self, stream: VerifyStream, welcome: Welcome) -> None:
        """Connect the stream and the drafting thread until the stream ends."""
        outbox: asyncio.Queue[Sequence[DraftMessage]] = asyncio.Queue()
        hand_over = _hand_over(outbox, self._identity.drill.draft_delay_ms / 1000)
        self._draft_loop.put(SessionBegan(welcome.draft_ahead, welcome.wants_distributions, hand_over))
        self._connected.set()
        sending = asyncio.create_task(self._send_all(stream, outbox))
        try:
            while (message := await stream.receive()) is not None:
                self._draft_loop.put(message)
        finally:
            self._connected.clear()
            self._draft_loop.put(SessionEnded())
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send_all(self, stream: VerifyStream, outbox: asyncio.Queue[Sequence[DraftMessage]]) -> None:
        is_useless = self._identity.drill.useless_draft
        while True:
            messages = await outbox.get()
            if is_useless:
                messages = [_spoiled(message, self._identity.hello.vocab_size) for message in messages]
            await stream.send(messages)


def _hand_over(outbox: asyncio.Queue[Sequence[DraftMessage]], delay_seconds: float) -> Send:
    """How the drafting thread puts messages into the outbox, held back by a drill's delay."""
    loop = asyncio.get_running_loop()

    def at_once(messages: Sequence[DraftMessage]) -> None:
        loop.call_soon_threadsafe(outbox.put_nowait, messages)

    def delayed(messages: Sequence[DraftMessage]) -> None:
        loop.call_soon_threadsafe(loop.call_later, delay_seconds, outbox.put_nowait, messages)

    return delayed if delay_seconds > 0 else at_once


def _spoiled(message: DraftMessage, vocab_size: int) -> DraftMessage:
    """A drill's useless draft; what is no proposal stays as it is."""
    return tuple(spoil(item, vocab_size) for item in message) if isinstance(message, tuple) else message


async def _run_until_signalled(settings: DraftSettings) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    worker = await DraftWorker.start(settings)
    stopped, closed = asyncio.create_task(stopping.wait()), asyncio.create_task(worker.wait_closed())
    try:
        await asyncio.wait({stopped, closed}, return_when=asyncio.FIRST_COMPLETED)
        if closed.done():
            closed.result()
    finally:
        stopped.cancel()
        closed.cancel()
        await worker.close()


def main() -> None:
    """Run one draft worker as a plain process until it is told to stop."""
    parser = argparse.ArgumentParser(prog="python -m replicas.draft_worker", description=main.__doc__)
    parser.add_argument("--settings", required=True, help="DraftSettings as JSON")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s draft: %(message)s")
    try:
        uvloop.run(_run_until_signalled(TypeAdapter(DraftSettings).validate_json(arguments.settings)))
    except ValidationError as error:
        raise SystemExit(f"--settings: {explain(error)}") from error
    except (ConfigError, DraftUnavailable) as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()

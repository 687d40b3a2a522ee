"""The target's end of the verify stream: hosts the service and feeds the `RemoteProposer`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import grpc
from google.protobuf.message import DecodeError

from fleet.clock import Clock
from fleet.config import TlsConfig
from fleet.errors import ConfigError, ProtocolViolation
from replicas.speculation.messages import DraftMessage, Hello, TargetMessage
from replicas.speculation.target_session import TargetSettings
from replicas.verify_rpc.codec import draft_message_from, target_frame
from replicas.verify_rpc.credentials import CHANNEL_OPTIONS, server_credentials
from replicas.verify_rpc.proposer import RemoteProposer
from replicas.verify_rpc.verify_pb2_grpc import VerifyServicer, add_VerifyServicer_to_server

HELLO_SECONDS = 10.0
"""A stream that has not introduced itself by then is ended."""

logger = logging.getLogger(__name__)


class VerifyServer(VerifyServicer):
    """One target's verify service. The newest draft that fits is the one that works."""

    def __init__(self, settings: TargetSettings, clock: Clock) -> None:
        self.proposer = RemoteProposer(settings, clock)
        self._server: grpc.aio.Server | None = None
        self._stream: _DraftStream | None = None

    async def start(self, host: str = "127.0.0.1", tls: TlsConfig | None = None, *, port: int = 0) -> str:
        """Listen on `host`, by default on a free port; the address as "host:port". Raises ConfigError."""
        server = grpc.aio.server(options=CHANNEL_OPTIONS)
        add_VerifyServicer_to_server(self, server)  # type: ignore[no-untyped-call]  # generated
        try:
            if tls is None:
                bound = server.add_insecure_port(f"{host}:{port}")
            else:
                bound = server.add_secure_port(f"{host}:{port}", server_credentials(tls))
        except RuntimeError as error:
            raise ConfigError(f"the verify service cannot listen on {host}:{port}: {error}") from error
        await server.start()
        self._server = server
        return f"{host}:{bound}"

    async def close(self) -> None:
        """End the draft's stream and stop listening."""
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    async def Session(self, request_iterator: object, context: grpc.aio.ServicerContext) -> None:  # noqa: N802 — the service's name
        """One draft's stream, from Hello to its end."""
        stream = _DraftStream(self.proposer, context)
        try:
            if await stream.greet():
                if self._stream is not None:
                    self._stream.stop()
                self._stream = stream
                await stream.run()
        except (ProtocolViolation, DecodeError) as error:
            logger.warning("the draft at %s is cut off: %s", context.peer(), error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello in time")
        finally:
            stream.detach()


class _DraftStream:
    """One draft's stream: the proposer's messages go out in order, the draft's come in."""

    def __init__(self, proposer: RemoteProposer, context: grpc.aio.ServicerContext) -> None:
        self._proposer = proposer
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._outbox: asyncio.Queue[Sequence[TargetMessage]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    def send(self, messages: Sequence[TargetMessage]) -> None:
        self._loop.call_soon_threadsafe(self._outbox.put_nowait, messages)

    async def greet(self) -> bool:
        """Whether the draft introduced itself and was taken on; it has its answer in either case."""
        async with asyncio.timeout(HELLO_SECONDS):
            hello = await self._receive()
        if hello is None:
            return False
        if not isinstance(hello, Hello):
            raise ProtocolViolation("the first frame must be Hello")
        is_taken = self._proposer.attach(hello, self)
        await self._write(await self._outbox.get())
        return is_taken

    async def run(self) -> None:
        """Talk until either side ends the stream. Raises ProtocolViolation and DecodeError."""
        self._tasks = [asyncio.create_task(self._read_all()), asyncio.create_task(self._write_all())]
        try:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.stop()
        for task in done:
            if not task.cancelled():
                task.result()

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def detach(self) -> None:
        self._proposer.detach(self)

    async def _receive(self) -> DraftMessage | None:
        frame = await self._context.read()
        return None if frame is grpc.aio.EOF else draft_message_from(frame)

    async def _read_all(self) -> None:
        while (message := await self._receive()) is not None:
            self._proposer.deliver(message, self)

    async def _write_all(self) -> None:
        while True:
            await self._write(await self._outbox.get())

    async def _write(self, messages: Sequence[TargetMessage]) -> None:
        for message in messages:
            await self._context.write(target_frame(message))

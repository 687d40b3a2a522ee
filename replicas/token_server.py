"""Serves the token stream to routers: one stream per router, one frame per engine step for all of its sequences."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc.aio

from fleet.errors import BadRequest, ConfigError
from fleet.generation import FailureKind, StepOutput, StreamFailed
from fleet.token_codec import request_from, step_frame
from fleet.tokens_v1 import tokens_pb2 as pb
from fleet.tokens_v1.tokens_pb2_grpc import TokensServicer, add_TokensServicer_to_server
from replicas.engine_thread import EngineThread
from replicas.stream_ledger import StreamLedger

logger = logging.getLogger(__name__)

CHANNEL_OPTIONS = (
    # Prompts with log-probabilities make large frames; both ends are ours.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
FLUSH_SECONDS = 2.0
"""Time for the last frames to leave after the grace has ended."""
SHUTTING_DOWN = "the replica shuts down"


class RouterStream:
    """One router's stream: the owner of its sequences."""

    def __init__(self, ledger: StreamLedger) -> None:
        self.frames: asyncio.Queue[pb.StepFrame | None] = asyncio.Queue()
        """None ends the stream."""
        self._ledger = ledger
        self._open: set[str] = set()
        self._is_half_closed = False

    def begin(self, request_id: str) -> bool:
        """False when the router uses an id twice."""
        if request_id in self._open:
            return False
        self._open.add(request_id)
        self._ledger.begin(request_id)
        return True

    def end(self, request_id: str) -> None:
        if request_id in self._open:
            self._open.remove(request_id)
            self._ledger.end(request_id)
        if self._is_half_closed and not self._open:
            self.frames.put_nowait(None)

    def half_close(self) -> None:
        """The router will ask for nothing more; the stream ends with its last sequence."""
        self._is_half_closed = True
        if not self._open:
            self.frames.put_nowait(None)

    def take(self, outputs: list[StepOutput]) -> None:
        """Queue one step's outputs as one frame."""
        self.frames.put_nowait(step_frame(outputs))
        for output in outputs:
            if isinstance(output, StreamFailed) or output.finish is not None:
                self.end(output.request_id)

    def abandon(self) -> None:
        for request_id in tuple(self._open):
            self.end(request_id)


class TokenServer(TokensServicer):
    """The `fleet.tokens.v1` service of one target worker."""

    def __init__(self, engine: EngineThread, ledger: StreamLedger) -> None:
        self._engine = engine
        self._ledger = ledger
        self._server: grpc.aio.Server | None = None
        self._streams: set[RouterStream] = set()
        self._is_draining = False

    async def start(self, host: str) -> str:
        """Listen on a free port of `host`; the address as "host:port". Raises ConfigError."""
        server = grpc.aio.server(options=CHANNEL_OPTIONS)
        add_TokensServicer_to_server(self, server)  # type: ignore[no-untyped-call]  # generated
        try:
            port = server.add_insecure_port(f"{host}:0")
        except RuntimeError as error:
            raise ConfigError(f"the token service cannot listen on {host}: {error}") from error
        await server.start()
        self._server = server
        return f"{host}:{port}"

    async def drain(self, grace_seconds: float) -> None:
        """Take nothing new, let open streams finish, fail those that do not in time, and stop listening."""
        self._is_draining = True
        if not await self._ledger.wait_idle(grace_seconds):
            self._engine.fail_all(FailureKind.SHUTTING_DOWN, SHUTTING_DOWN)
            await self._ledger.wait_idle(FLUSH_SECONDS)
        for stream in self._streams:
            stream.frames.put_nowait(None)
        if self._server is not None:
            await self._server.stop(grace=FLUSH_SECONDS)

    async def Session(  # noqa: N802 (the service's name)
        self, request_iterator: AsyncIterator[pb.RouterFrame], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.StepFrame]:
        """One router's stream, until it leaves; whatever it leaves behind is cancelled."""
        stream = RouterStream(self._ledger)
        self._streams.add(stream)
        reading = asyncio.create_task(self._read(request_iterator, stream))
        try:
            while (frame := await stream.frames.get()) is not None:
                yield frame
        finally:
            reading.cancel()
            self._streams.discard(stream)
            self._engine.cancel_owner(stream)
            stream.abandon()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, frames: AsyncIterator[pb.RouterFrame], stream: RouterStream) -> None:
        async for frame in frames:
            if frame.HasField("start"):
                self._start(frame.start, stream)
            elif frame.HasField("cancel"):
                self._engine.cancel(stream, frame.cancel.request_ids)
                for request_id in frame.cancel.request_ids:
                    stream.end(request_id)
        stream.half_close()

    def _start(self, start: pb.Start, stream: RouterStream) -> None:
        if not stream.begin(start.request_id):
            logger.warning("a router started request %s twice; the second start is ignored", start.request_id)
            return
        if self._is_draining:
            stream.take([StreamFailed(start.request_id, FailureKind.SHUTTING_DOWN, SHUTTING_DOWN)])
            return
        try:
            request = request_from(start)
        except BadRequest as error:
            stream.take([StreamFailed(start.request_id, FailureKind.BAD_REQUEST, str(error))])
        else:
            self._engine.submit(request, stream)

"""Tokens from one target worker: one gRPC stream for all of this router's requests to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import assert_never

import grpc
import grpc.aio

from fleet.errors import BadRequest, FleetError, OutOfMemory, Overloaded, ReplicaLost
from fleet.generation import FailureKind, GenerationRequest, StepOutput, StreamFailed, TokenChunk
from fleet.token_codec import cancel_frame, outputs_from, start_frame
from fleet.tokens_v1 import tokens_pb2 as pb
from fleet.tokens_v1.tokens_pb2_grpc import TokensStub

CHANNEL_OPTIONS = (
    # Prompts with log-probabilities make large frames; both ends are ours.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A worker that comes back on its address must not wait for gRPC's two minutes of back-off.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

Inbox = asyncio.Queue[StepOutput | ReplicaLost]


class TokenClient:
    """All streams of this router to the worker at `address` ("host:port").

    The gRPC stream is opened by the first request, and again by the first request after it broke.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel: grpc.aio.Channel | None = None
        self._session: _Session | None = None

    @property
    def is_broken(self) -> bool:
        """Whether the worker has left or was lost since the last request."""
        return self._session is not None and self._session.is_broken

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        """Stream one choice to the chunk with its finish; closing the generator earlier cancels it at the worker.

        Raises ReplicaLost when the stream breaks (naming the address as `replica`) or the worker shuts down or
        fails inside, OutOfMemory, Overloaded, or BadRequest.
        """
        session = self._open_session()
        inbox = session.start(request)
        is_over = False
        try:
            while not is_over:
                output = await inbox.get()
                if isinstance(output, TokenChunk):
                    is_over = output.finish is not None
                    yield output
                else:
                    is_over = True
                    raise self._failure(output)
        finally:
            session.end(request.request_id, is_over=is_over)

    async def close(self) -> None:
        """Break the stream off; requests still open are lost."""
        if self._session is not None:
            await self._session.close()
        if self._channel is not None:
            await self._channel.close()

    def _open_session(self) -> _Session:
        if self._session is None or self._session.is_broken:
            if self._channel is None:
                self._channel = grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS)
            self._session = _Session(self._channel, self._address)
        return self._session

    def _failure(self, output: StreamFailed | ReplicaLost) -> FleetError:
        if isinstance(output, ReplicaLost):
            return output
        kind = output.kind
        match kind:
            case FailureKind.BAD_REQUEST:
                return BadRequest(output.message)
            case FailureKind.OVERLOADED:
                return Overloaded(output.message)
            case FailureKind.OUT_OF_MEMORY:
                return OutOfMemory(output.message)
            case FailureKind.SHUTTING_DOWN:
                # Leaving in an orderly way is no crash, so no replica is named.
                return ReplicaLost(output.message)
            case FailureKind.INTERNAL:
                return ReplicaLost(output.message, replica=self._address)
            case _:
                assert_never(kind)


class _Session:
    """One gRPC stream while it lasts: frames out, and each step's outputs to their inboxes."""

    def __init__(self, channel: grpc.aio.Channel, address: str) -> None:
        self.is_broken = False
        self._address = address
        self._inboxes: dict[str, Inbox] = {}
        self._outgoing: asyncio.Queue[pb.RouterFrame] = asyncio.Queue()
        self._call = TokensStub(channel).Session(self._frames())  # type: ignore[no-untyped-call]
        self._reading = asyncio.create_task(self._read())

    def start(self, request: GenerationRequest) -> Inbox:
        inbox: Inbox = asyncio.Queue()
        self._inboxes[request.request_id] = inbox
        self._outgoing.put_nowait(start_frame(request))
        return inbox

    def end(self, request_id: str, *, is_over: bool) -> None:
        """Forget a request; unless the worker ended it itself, it is told to."""
        self._inboxes.pop(request_id, None)
        if not is_over and not self.is_broken:
            self._outgoing.put_nowait(cancel_frame([request_id]))

    async def close(self) -> None:
        self._call.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _frames(self) -> AsyncIterator[pb.RouterFrame]:
        while True:
            yield await self._outgoing.get()

    async def _read(self) -> None:
        # A worker that ends the stream in good order has left; only one that breaks it off has died.
        reason, dead = "it closed the stream", None
        try:
            async for frame in self._call:
                for output in outputs_from(frame):
                    inbox = self._inboxes.get(output.request_id)
                    if inbox is not None:
                        inbox.put_nowait(output)
        except grpc.aio.AioRpcError as error:
            reason, dead = f"{error.code().name}: {error.details()}", self._address
        finally:
            self.is_broken = True
            for inbox in self._inboxes.values():
                inbox.put_nowait(ReplicaLost(f"lost the replica at {self._address}: {reason}", replica=dead))

"""The draft's end of the verify stream: dials the target, says Hello, talks until the stream breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
from google.protobuf.message import DecodeError

from fleet.config import TlsConfig
from fleet.errors import ConfigError, DraftUnavailable, ProtocolViolation
from replicas.speculation.messages import DraftMessage, Hello, Refused, SequenceMessage, TargetMessage, Welcome
from replicas.verify_rpc.codec import draft_frame, target_message_from
from replicas.verify_rpc.credentials import CHANNEL_OPTIONS, channel_credentials
from replicas.verify_rpc.verify_pb2_grpc import VerifyStub

DIAL_SECONDS = 10.0
"""From dialling to the target's answer to Hello."""


class VerifyStream:
    """A stream on which the target said Welcome. Send and receive may run at the same time."""

    def __init__(self, call: grpc.aio.StreamStreamCall) -> None:
        self._call = call

    async def send(self, messages: Sequence[DraftMessage]) -> None:
        """Raises DraftUnavailable when the stream is broken."""
        try:
            for message in messages:
                await self._call.write(draft_frame(message))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise DraftUnavailable(f"the verify stream broke: {_reason(error)}") from error

    async def receive(self) -> SequenceMessage | None:
        """The next message, None at the end of the stream. Raises DraftUnavailable and ProtocolViolation."""
        message = await self._read()
        if isinstance(message, Welcome | Refused):
            raise ProtocolViolation(f"{type(message).__name__} in the middle of a session")
        return message

    async def introduce(self, hello: Hello) -> Welcome:
        """Say Hello. Raises ConfigError with the target's reason when it refuses this draft."""
        await self.send([hello])
        match await self._read():
            case Welcome() as welcome:
                return welcome
            case Refused(reason):
                raise ConfigError(f"the target refuses this draft: {reason}")
            case None:
                raise DraftUnavailable("the target ended the session before it began")
            case answer:
                raise ProtocolViolation(f"{type(answer).__name__} in answer to Hello")

    async def _read(self) -> TargetMessage | None:
        try:
            frame = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise DraftUnavailable(f"the verify stream broke: {_reason(error)}") from error
        except DecodeError as error:
            raise ProtocolViolation(f"a frame that is no target frame: {error}") from error
        return None if frame is grpc.aio.EOF else target_message_from(frame)


@asynccontextmanager
async def dial(address: str, hello: Hello, tls: TlsConfig | None) -> AsyncIterator[tuple[VerifyStream, Welcome]]:
    """A session with the target at "host:port".

    Raises DraftUnavailable when it cannot be reached, ConfigError with its reason when it refuses this draft.
    """
    async with _channel(address, tls) as channel:
        call = VerifyStub(channel).Session()  # type: ignore[no-untyped-call]  # generated
        try:
            stream = VerifyStream(call)
            async with asyncio.timeout(DIAL_SECONDS):
                welcome = await stream.introduce(hello)
            yield stream, welcome
        except TimeoutError as error:
            raise DraftUnavailable(f"the target at {address} does not answer") from error
        finally:
            call.cancel()


def _channel(address: str, tls: TlsConfig | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address, channel_credentials(tls), options=CHANNEL_OPTIONS)


def _reason(error: Exception) -> str:
    return error.details() or error.code().name if isinstance(error, grpc.aio.AioRpcError) else str(error)

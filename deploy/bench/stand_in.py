"""A target worker without a model: tokens at a steady pace over the real token socket, to measure what is around."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator

import grpc

from fleet.generation import FinishReason, TokenChunk
from fleet.token_codec import step_frame
from fleet.tokens_v1 import tokens_pb2 as pb
from fleet.tokens_v1.tokens_pb2_grpc import TokensServicer, add_TokensServicer_to_server

TOKEN_ID = 1


def stamp() -> str:
    """The text of a token: when it was emitted, so that a reader on the same machine knows how long it travelled."""
    return f"@{time.monotonic_ns()} "


class Pace:
    """Steps on a grid of `step_seconds`, the same for all streams of a process, as an engine's steps are.

    0 never waits beyond letting others run.
    """

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._done = 0

    async def step(self) -> None:
        """Wait for the next point of the grid; points that were missed are skipped."""
        if self._step_seconds == 0.0:
            await asyncio.sleep(0)
            return
        now = time.monotonic()
        self._done = max(self._done + 1, math.ceil(now / self._step_seconds))
        await asyncio.sleep(self._done * self._step_seconds - now)


class StandIn(TokensServicer):
    """Serves `fleet.tokens.v1`: so many tokens per stream and step, until a stream has its `max_tokens`."""

    def __init__(self, step_seconds: float, tokens_per_step: int = 1) -> None:
        self._step_seconds = step_seconds
        self._tokens_per_step = tokens_per_step
        self._ended: dict[str, asyncio.Event] = {}
        self._server = grpc.aio.server()
        add_TokensServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]  # generated

    async def start(self, host: str = "127.0.0.1") -> str:
        """Listen on a free port; returns "host:port"."""
        port = self._server.add_insecure_port(f"{host}:0")
        await self._server.start()
        return f"{host}:{port}"

    async def close(self) -> None:
        await self._server.stop(grace=None)

    async def finished(self, request_id: str) -> None:
        """Return when the stream of this request has ended; it may arrive later than this call."""
        await self._end_of(request_id).wait()
        del self._ended[request_id]

    async def Session(  # noqa: N802 - gRPC's name
        self, frames: AsyncIterator[pb.RouterFrame], _: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.StepFrame]:
        """All streams of one router."""
        remaining: dict[str, int] = {}
        news = asyncio.Event()
        reader = asyncio.create_task(self._read(frames, remaining, news))
        pace = Pace(self._step_seconds)
        try:
            while not reader.done():
                if not remaining:
                    news.clear()
                    await news.wait()
                await pace.step()
                yield step_frame(self._emit(remaining))
        finally:
            reader.cancel()
            for request_id in remaining:
                self._end_of(request_id).set()

    async def _read(
        self, frames: AsyncIterator[pb.RouterFrame], remaining: dict[str, int], news: asyncio.Event
    ) -> None:
        try:
            async for frame in frames:
                if frame.HasField("start"):
                    remaining[frame.start.request_id] = frame.start.sampling.max_tokens
                for request_id in frame.cancel.request_ids:
                    if remaining.pop(request_id, None) is not None:
                        self._end_of(request_id).set()
                news.set()
        finally:
            news.set()

    def _emit(self, remaining: dict[str, int]) -> list[TokenChunk]:
        text = stamp()
        chunks = []
        for request_id, count in list(remaining.items()):
            tokens = (TOKEN_ID,) * min(count, self._tokens_per_step)
            finish = FinishReason.LENGTH if count == len(tokens) else None
            chunks.append(TokenChunk(request_id, tokens, text, finish=finish))
            if finish:
                del remaining[request_id]
                self._end_of(request_id).set()
            else:
                remaining[request_id] = count - len(tokens)
        return chunks

    def _end_of(self, request_id: str) -> asyncio.Event:
        return self._ended.setdefault(request_id, asyncio.Event())

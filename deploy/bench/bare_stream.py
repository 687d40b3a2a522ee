"""What does a gRPC stream alone cost per round trip, with the same hand-over between threads as the verify stream?"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread

import grpc
import uvloop

SERVICE = "bench.Echo"
METHOD = "Session"


class BareStream:
    """The server's end: frames are handed to the event loop's thread, answers come back through a queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._answers: SimpleQueue[bytes] = SimpleQueue()

    def round(self, frame: bytes) -> bytes:
        """Send a frame and wait for its answer; called from a thread that is not the loop's."""
        self._loop.call_soon_threadsafe(self._outbox.put_nowait, frame)
        return self._answers.get()

    def wait_open(self) -> None:
        """Return when the other end has opened the stream, which it does with an empty frame."""
        self._answers.get()

    async def serve(self, request_iterator: object, context: grpc.aio.ServicerContext) -> None:
        writing = asyncio.create_task(self._write_all(context))
        try:
            while (answer := await context.read()) is not grpc.aio.EOF:
                self._answers.put(answer)
        finally:
            writing.cancel()

    async def _write_all(self, context: grpc.aio.ServicerContext) -> None:
        while True:
            await context.write(await self._outbox.get())


@contextmanager
def bare_rounds(loop: asyncio.AbstractEventLoop) -> Iterator[BareStream]:
    """A stream to another process that sends every frame back; `loop` runs in another thread."""
    stream = BareStream(loop)
    server, port = asyncio.run_coroutine_threadsafe(_listen(stream), loop).result()
    echo = multiprocessing.get_context("spawn").Process(target=_run_echo, args=(port,), daemon=True)
    echo.start()
    try:
        stream.wait_open()
        yield stream
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(grace=None), loop).result()
        echo.join()


def timed_rounds(stream: BareStream, frame: bytes, rounds: int, pause_seconds: float) -> list[float]:
    """Seconds of each round."""
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        stream.round(frame)
        seconds.append(time.perf_counter() - began)
        time.sleep(pause_seconds)
    return seconds


@contextmanager
def loop_in_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread of its own."""
    loop = uvloop.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _listen(stream: BareStream) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(stream.serve)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


def _run_echo(port: int) -> None:
    uvloop.run(_echo(port))


async def _echo(port: int) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
        try:
            await call.write(b"")
            while (frame := await call.read()) is not grpc.aio.EOF:
                await call.write(frame)
        except grpc.aio.AioRpcError:
            return

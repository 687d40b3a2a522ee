"""One router's stream to a worker, over the real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from fleet.generation import GenerationRequest, StepOutput
from fleet.token_codec import outputs_from, start_frame
from fleet.tokens_v1 import tokens_pb2 as pb
from fleet.tokens_v1.tokens_pb2_grpc import TokensStub
from replicas.target_worker import TargetWorker, WorkerSettings
from tests.replicas.engine.rig import Result


@asynccontextmanager
async def started(settings: WorkerSettings) -> AsyncIterator[TargetWorker]:
    """A worker that is closed whatever happens to it."""
    worker = await TargetWorker.start(settings)
    try:
        yield worker
    finally:
        await worker.close(grace_seconds=0.0)


class Router:
    """One router's stream to a worker."""

    def __init__(self, worker: TargetWorker) -> None:
        self._channel = grpc.aio.insecure_channel(worker.tokens_address)
        self._call = TokensStub(self._channel).Session()
        self.results: dict[str, Result] = {}
        self.frames: list[list[StepOutput]] = []

    async def __aenter__(self) -> Router:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close(None)

    async def send(self, *frames: pb.RouterFrame) -> None:
        for frame in frames:
            await self._call.write(frame)

    async def start(self, *requests: GenerationRequest) -> None:
        for each in requests:
            self.results.setdefault(each.request_id, Result())
        await self.send(*(start_frame(each) for each in requests))

    async def receive(self) -> None:
        frame = await self._call.read()
        assert frame is not grpc.aio.EOF, "the worker ended the stream"
        self.frames.append(list(outputs_from(frame)))
        for output in self.frames[-1]:
            self.results[output.request_id].add(output)

    async def run(self, *requests: GenerationRequest) -> dict[str, Result]:
        await self.start(*requests)
        while not all(self.results[each.request_id].has_ended for each in requests):
            await self.receive()
        return self.results

    async def half_close(self) -> None:
        await self._call.done_writing()

    async def is_over(self) -> bool:
        return await self._call.read() is grpc.aio.EOF


def answers(results: dict[str, Result]) -> dict[str, tuple[object, ...]]:
    return {name: result.answer() for name, result in results.items()}

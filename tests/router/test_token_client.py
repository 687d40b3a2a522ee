"""The token stream against a small gRPC server: many requests on one stream, and every way in which it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import grpc.aio
import pytest

from fleet.errors import BadRequest, FleetError, OutOfMemory, Overloaded, ReplicaLost
from fleet.generation import (
    FailureKind,
    FinishReason,
    GenerationRequest,
    Resume,
    Round,
    SamplingParams,
    StepOutput,
    StreamFailed,
    TokenChunk,
)
from fleet.token_codec import request_from, step_frame
from fleet.tokens_v1 import tokens_pb2 as pb
from fleet.tokens_v1.tokens_pb2_grpc import TokensServicer, add_TokensServicer_to_server
from router.token_client import TokenClient


class StepServer(TokensServicer):
    """Runs steps of all started requests together, as an engine does, until a test wants otherwise."""

    def __init__(self) -> None:
        self.sessions = 0
        self.requests: dict[str, GenerationRequest] = {}
        self.cancelled: list[str] = []
        self.frames_sent = 0
        self.answer: Callable[[GenerationRequest, int], StepOutput | None] = finishing_after(3)
        self.is_breaking = False
        self.is_leaving = False

    async def Session(  # noqa: N802 - gRPC's name
        self, frames: AsyncIterator[pb.RouterFrame], context: grpc.aio.ServicerContext[pb.RouterFrame, pb.StepFrame]
    ) -> AsyncIterator[pb.StepFrame]:
        self.sessions += 1
        reading = asyncio.create_task(self._read(frames))
        steps: dict[str, int] = {}
        try:
            while not (self.is_breaking or self.is_leaving):
                await asyncio.sleep(0.001)
                outputs = []
                for name, request in list(self.requests.items()):
                    steps[name] = steps.get(name, 0) + 1
                    output = self.answer(request, steps[name])
                    if output is not None:
                        outputs.append(output)
                    if isinstance(output, StreamFailed) or (output is not None and output.finish):
                        del self.requests[name]
                if outputs:
                    self.frames_sent += 1
                    yield step_frame(outputs)
            if not self.is_leaving:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the machine is gone")
        finally:
            reading.cancel()

    async def _read(self, frames: AsyncIterator[pb.RouterFrame]) -> None:
        async for frame in frames:
            if frame.WhichOneof("frame") == "start":
                request = request_from(frame.start)
                self.requests[request.request_id] = request
            else:
                for name in frame.cancel.request_ids:
                    self.cancelled.append(name)
                    self.requests.pop(name, None)


def finishing_after(steps: int) -> Callable[[GenerationRequest, int], StepOutput | None]:
    def answer(request: GenerationRequest, step: int) -> StepOutput:
        finish = FinishReason.LENGTH if step == steps else None
        return TokenChunk(request.request_id, (step, step), f"<{step}>", finish=finish, round=Round(4, 1))

    return answer


def failing_with(kind: FailureKind) -> Callable[[GenerationRequest, int], StepOutput | None]:
    return lambda request, step: StreamFailed(request.request_id, kind, "why it failed")


def request(name: str) -> GenerationRequest:
    return GenerationRequest(name, (1, 2, 3), SamplingParams(seed=7, max_tokens=9), resume=Resume((4,), 2))


@pytest.fixture
async def server() -> AsyncIterator[tuple[StepServer, str]]:
    service = StepServer()
    running = grpc.aio.server()
    add_TokensServicer_to_server(service, running)  # type: ignore[no-untyped-call]
    port = running.add_insecure_port("127.0.0.1:0")
    await running.start()
    yield service, f"127.0.0.1:{port}"
    await running.stop(None)


@pytest.fixture
async def client(server: tuple[StepServer, str]) -> AsyncIterator[TokenClient]:
    client = TokenClient(server[1])
    yield client
    await client.close()


async def collect(client: TokenClient, name: str) -> list[TokenChunk]:
    async with aclosing(client.generate(request(name))) as chunks:
        return [chunk async for chunk in chunks]


async def test_all_requests_share_one_stream_and_each_gets_its_own_chunks(
    server: tuple[StepServer, str], client: TokenClient
) -> None:
    results = await asyncio.gather(*(collect(client, f"r{i}") for i in range(8)))
    for index, chunks in enumerate(results):
        assert {chunk.request_id for chunk in chunks} == {f"r{index}"}
        assert [chunk.text for chunk in chunks] == ["<1>", "<2>", "<3>"]
        assert chunks[-1].finish is FinishReason.LENGTH
        assert chunks[0].round == Round(4, 1)
    assert server[0].sessions == 1
    assert server[0].frames_sent < 24, "steps of several requests travel together"
    assert server[0].cancelled == []


async def test_the_request_arrives_as_it_was_sent(server: tuple[StepServer, str], client: TokenClient) -> None:
    seen: list[GenerationRequest] = []

    def answer(request: GenerationRequest, step: int) -> StepOutput:
        seen.append(request)
        return finishing_after(1)(request, step)  # type: ignore[return-value]

    server[0].answer = answer
    await collect(client, "r")
    assert seen == [request("r")]


async def test_closing_a_stream_early_cancels_it_at_the_worker(
    server: tuple[StepServer, str], client: TokenClient
) -> None:
    server[0].answer = finishing_after(10_000)
    async with aclosing(client.generate(request("left"))) as chunks:
        await anext(chunks)
    await collect_until(lambda: server[0].cancelled == ["left"])
    assert "left" not in server[0].requests


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (FailureKind.BAD_REQUEST, BadRequest),
        (FailureKind.OVERLOADED, Overloaded),
        (FailureKind.OUT_OF_MEMORY, OutOfMemory),
        (FailureKind.SHUTTING_DOWN, ReplicaLost),
        (FailureKind.INTERNAL, ReplicaLost),
    ],
)
async def test_each_kind_of_failure_is_an_error_of_its_own(
    server: tuple[StepServer, str], client: TokenClient, kind: FailureKind, error: type[FleetError]
) -> None:
    server[0].answer = failing_with(kind)
    with pytest.raises(error, match="why it failed") as caught:
        await collect(client, "r")
    if isinstance(caught.value, ReplicaLost):
        assert (caught.value.replica == server[1]) == (kind is FailureKind.INTERNAL)
    assert server[0].cancelled == []


async def test_a_broken_stream_loses_all_its_requests_and_the_next_request_opens_a_new_one(
    server: tuple[StepServer, str], client: TokenClient
) -> None:
    service, address = server
    service.answer = finishing_after(10_000)
    streams = [asyncio.create_task(collect(client, f"r{i}")) for i in range(4)]
    await collect_until(lambda: len(service.requests) == 4)
    service.is_breaking = True
    results = await asyncio.gather(*streams, return_exceptions=True)
    for result in results:
        assert isinstance(result, ReplicaLost)
        assert result.replica == address
        assert "the machine is gone" in str(result)
    service.is_breaking = False
    service.requests.clear()
    service.answer = finishing_after(2)
    assert len(await collect(client, "again")) == 2
    assert service.sessions == 2


async def test_a_worker_that_ends_the_stream_in_good_order_is_lost_but_not_dead(
    server: tuple[StepServer, str], client: TokenClient
) -> None:
    server[0].answer = finishing_after(10_000)
    stream = asyncio.create_task(collect(client, "r"))
    await collect_until(lambda: "r" in server[0].requests)
    server[0].is_leaving = True
    with pytest.raises(ReplicaLost, match="closed the stream") as caught:
        await stream
    assert caught.value.replica is None


async def test_a_worker_that_is_not_there_is_a_lost_replica() -> None:
    client = TokenClient("127.0.0.1:1")
    with pytest.raises(ReplicaLost, match="UNAVAILABLE") as caught:
        await collect(client, "r")
    assert caught.value.replica == "127.0.0.1:1"
    await client.close()


async def collect_until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_true():  # noqa: ASYNC110 - what is awaited happens inside the server
            await asyncio.sleep(0.002)

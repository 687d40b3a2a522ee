import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import grpc
import pytest

from deploy.bench.sse_probe import read_stream
from deploy.bench.stand_in import Pace, StandIn, stamp
from fleet.errors import ReplicaLost
from fleet.generation import GenerationRequest, SamplingParams
from fleet.token_codec import cancel_frame, start_frame
from fleet.tokens_v1 import tokens_pb2 as pb
from fleet.tokens_v1.tokens_pb2_grpc import TokensStub


def start(request_id: str, tokens: int) -> pb.RouterFrame:
    return start_frame(GenerationRequest(request_id, (1,), SamplingParams(seed=0, max_tokens=tokens)))


async def test_the_stand_in_gives_every_stream_its_tokens_one_a_step_and_then_ends_its_slot() -> None:
    worker = StandIn(step_seconds=0.0)
    address = await worker.start()
    slots = [asyncio.create_task(worker.finished(name)) for name in ("a", "b")]
    async with grpc.aio.insecure_channel(address) as channel:
        session = TokensStub(channel).Session()
        await session.write(start("a", 3))
        await session.write(start("b", 5))
        chunks: dict[str, list[pb.Chunk]] = {"a": [], "b": []}
        async for frame in session:
            for chunk in frame.chunks:
                chunks[chunk.request_id].append(chunk)
            if len(chunks["a"]) == 3 and len(chunks["b"]) == 5:
                break
        await asyncio.gather(*slots)
        session.cancel()
    await worker.close()
    assert [chunk.finish for chunk in chunks["a"]] == ["", "", "length"]
    assert all(list(chunk.token_ids) == [1] for stream in chunks.values() for chunk in stream)


async def test_a_stand_in_for_speculation_emits_several_tokens_a_step_and_never_too_many() -> None:
    worker = StandIn(step_seconds=0.0, tokens_per_step=3)
    address = await worker.start()
    async with grpc.aio.insecure_channel(address) as channel:
        session = TokensStub(channel).Session()
        await session.write(start("a", 7))
        chunks: list[pb.Chunk] = []
        while not (chunks and chunks[-1].finish):
            chunks.extend((await session.read()).chunks)
        session.cancel()
    await worker.close()
    assert [len(chunk.token_ids) for chunk in chunks] == [3, 3, 1]


async def test_a_cancelled_stream_frees_its_slot() -> None:
    worker = StandIn(step_seconds=0.001)
    address = await worker.start()
    async with grpc.aio.insecure_channel(address) as channel:
        session = TokensStub(channel).Session()
        await session.write(start("a", 1_000_000))
        await session.read()
        await session.write(cancel_frame(["a"]))
        await asyncio.wait_for(worker.finished("a"), timeout=10)
        session.cancel()
    await worker.close()


async def test_a_router_that_leaves_frees_all_its_slots() -> None:
    worker = StandIn(step_seconds=0.001)
    address = await worker.start()
    async with grpc.aio.insecure_channel(address) as channel:
        session = TokensStub(channel).Session()
        await session.write(start("a", 1_000_000))
        await session.read()
        session.cancel()
        await asyncio.wait_for(worker.finished("a"), timeout=10)
    await worker.close()


async def test_paces_of_one_process_keep_the_same_grid_and_skip_what_they_missed() -> None:
    pace = Pace(0.020)
    phases = []
    for wait in (0.0, 0.0, 0.050, 0.0):
        await asyncio.sleep(wait)
        before = time.monotonic()
        await pace.step()
        assert time.monotonic() - before < 10.0
        phases.append(time.monotonic() / 0.020)
    assert [int(later) > int(sooner) for sooner, later in pairwise(phases)] == [True] * 3


def event(text: str) -> str:
    return f'data: {{"choices":[{{"delta":{{"content":"{text}"}}}}]}}\n\n'


@asynccontextmanager
async def serve_pieces(pieces: list[str]) -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", head)
        assert length is not None
        await reader.readexactly(int(length[1]))
        for piece in pieces:
            writer.write(piece.encode())
            await writer.drain()
            await asyncio.sleep(0.001)
        writer.close()
        await writer.wait_closed()
        closed.set()

    closed = asyncio.Event()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await closed.wait()


async def test_the_probe_finds_every_stamp_however_the_events_are_cut() -> None:
    stamps = [stamp() for _ in range(20)]
    whole = "HTTP/1.1 200 OK\r\n\r\n" + "".join(map(event, stamps)) + "data: [DONE]\n\n"
    for size in (7, 31, len(whole)):
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        async with serve_pieces(pieces) as port:
            arrivals = await read_stream("127.0.0.1", port, "/x", {"x-fleet-path": "paced"}, {"max_tokens": 20})
            assert arrivals.emitted == [int(text[1:]) for text in stamps]
            assert len(arrivals.arrived) == 20
            assert all(there >= here for here, there in zip(arrivals.emitted, arrivals.arrived, strict=True))


async def test_a_stream_that_breaks_off_is_an_error_not_a_short_measurement() -> None:
    async with serve_pieces(["HTTP/1.1 200 OK\r\n\r\n", event(stamp())]) as port:
        with pytest.raises(ReplicaLost, match="early"):
            await read_stream("127.0.0.1", port, "/x", {}, {})

"""Drafts that die, freeze, lie, mumble or are strangers, over real gRPC: the target's text never changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import grpc
import pytest

from fleet.clock import SystemClock
from fleet.config import DrillConfig
from fleet.errors import ConfigError, OutOfMemory
from replicas.engine.judging import was_drawn
from replicas.speculation.messages import Closing, DraftMessage, Opening, Proposal
from replicas.speculation.proposer import ProposerHealth
from replicas.verify_rpc.client import dial
from replicas.verify_rpc.codec import draft_frame
from replicas.verify_rpc.server import VerifyServer
from tests.fake_model import FakeModel
from tests.replicas.verify_rig import (
    HELLO,
    IDENTITY,
    VOCABULARY,
    ToyTarget,
    all_accepted,
    all_true,
    bare_stream,
    drafting,
    eventually,
    new_engine,
    serving,
    settings,
    steps_until,
)


async def test_a_draft_of_the_same_model_is_accepted_whole_and_leaves_nothing_behind() -> None:
    engine = new_engine()
    async with serving() as (server, address):
        target = ToyTarget(server.proposer)
        target.open(1, 2, 3)
        async with drafting(address, engine=engine):
            await steps_until(target, all_accepted)
            assert server.proposer.state().health == ProposerHealth.HEALTHY
            assert all_true(target)
            target.close()
            await eventually(lambda: engine.used_tokens == 0)
    assert server.proposer.counters.wrong == 0


async def test_a_draft_that_dies_is_missed_by_nobody_and_its_successor_takes_over() -> None:
    first, second = new_engine(), new_engine()
    async with serving() as (server, address):
        target = ToyTarget(server.proposer)
        target.open(1, 2)
        async with drafting(address, engine=first):
            await steps_until(target, all_accepted)
        await eventually(lambda: server.proposer.state().health == ProposerHealth.LOST)
        assert first.used_tokens == 0
        assert target.step() == {1: 0, 2: 0}
        async with drafting(address, engine=second):
            await steps_until(target, all_accepted)
            assert all_true(target)


async def test_a_draft_without_memory_says_so_and_goes_on() -> None:
    model = FakeModel()
    async with serving() as (server, address), drafting(address, engine=new_engine(model)):
        model.fails = [OutOfMemory("no more")]
        target = ToyTarget(server.proposer)
        target.open(1)
        await steps_until(target, lambda accepted: server.proposer.state().out_of_memory == 1)
        target.open(2)
        await steps_until(target, lambda accepted: accepted[2] > 0)
        assert all_true(target)
        assert server.proposer.state().health == ProposerHealth.HEALTHY


async def test_the_newest_draft_replaces_the_one_before() -> None:
    async with serving() as (server, address):
        target = ToyTarget(server.proposer)
        target.open(1)
        async with dial(address, HELLO, None) as (old, _), drafting(address):
            assert await old.receive() is None
            await steps_until(target, all_accepted)
        assert all_true(target)


async def test_a_draft_outlives_its_target_and_joins_the_next_one() -> None:
    engine = new_engine()
    async with serving() as (server, address), drafting(address, engine=engine) as worker:
        target = ToyTarget(server.proposer)
        target.open(1)
        await steps_until(target, all_accepted)
        await server.close()
        await eventually(lambda: not worker.is_connected and engine.used_tokens == 0)
        successor = VerifyServer(settings(), SystemClock())
        await successor.start("127.0.0.1", port=int(address.rpartition(":")[2]))
        await eventually(lambda: worker.is_connected)
        await successor.close()


async def test_a_frozen_draft_is_waited_for_a_few_times_only() -> None:
    async with serving(settings(ceiling=0.2)) as (server, address):
        target = ToyTarget(server.proposer)
        async with dial(address, HELLO, None) as (stream, _):
            target.open(1)
            opening = await stream.receive()
            assert isinstance(opening, Opening)
            await stream.send([(_honest(opening, 1),)])
            await eventually(lambda: server.proposer.state().health == ProposerHealth.HEALTHY)
            await steps_until(target, lambda _: server.proposer.counters.breaker_openings >= 1)
            assert server.proposer.state().health == ProposerHealth.DEGRADED
            began = time.monotonic()
            for _ in range(5):
                await asyncio.to_thread(target.step)
            assert server.proposer.counters.late <= 5
            assert time.monotonic() - began < 5 * 0.2
        assert all_true(target)


def _honest(opening: Opening, count: int) -> Proposal:
    return Proposal(opening.sequence_id, opening.epoch, len(opening.token_ids), (7,) * count)


LIES: dict[str, Callable[[Proposal], Proposal]] = {
    "a token beyond the vocabulary": lambda p: replace(p, token_ids=(VOCABULARY,)),
    "more tokens than asked for": lambda p: replace(p, token_ids=(1,) * 9),
    "an epoch that is not yet": lambda p: replace(p, epoch=p.epoch + 7),
    "a text that is not yet": lambda p: replace(p, base_length=p.base_length + 3),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_a_lie_takes_the_draft_from_that_sequence_and_from_no_other(lie: Callable[[Proposal], Proposal]) -> None:
    async with serving() as (server, address):
        target = ToyTarget(server.proposer)
        async with dial(address, HELLO, None) as (stream, _):
            target.open(1, 2)
            openings = [await stream.receive(), await stream.receive()]
            assert isinstance(openings[0], Opening)
            assert isinstance(openings[1], Opening)
            await stream.send([(lie(_honest(openings[0], 2)), _honest(openings[1], 2))])
            await eventually(lambda: server.proposer.counters.wrong == 1)
            await asyncio.to_thread(target.step)
            answers = [await stream.receive(), await stream.receive()]
            assert answers[0] == Closing((1,), "quarantined or lost")
            assert isinstance(answers[1], tuple)
            assert [verdict.sequence_id for verdict in answers[1]] == [2]
        assert all_true(target)


async def _read_to_the_end(call: grpc.aio.StreamStreamCall) -> None:
    async with asyncio.timeout(10):
        while await call.read() is not grpc.aio.EOF:
            pass


BROKEN: dict[str, list[bytes]] = {
    "garbage": [b"\xff\xfe\xfd garbage"],
    "a frame without content": [b""],
    "proposals before Hello": [draft_frame(()).SerializeToString()],
    "garbage after Hello": [draft_frame(HELLO).SerializeToString(), b"\xff\xff\xff\xff"],
    "a second Hello": [draft_frame(HELLO).SerializeToString()] * 2,
}


@pytest.mark.parametrize("frames", BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_stream_ends_and_the_next_draft_is_served(frames: list[bytes]) -> None:
    async with serving() as (server, address):
        target = ToyTarget(server.proposer)
        target.open(1)
        async with bare_stream(address) as call:
            for frame in frames:
                await call.write(frame)
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await _read_to_the_end(call)
            assert ended.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        await eventually(lambda: server.proposer.state().health == ProposerHealth.LOST)
        async with drafting(address):
            await steps_until(target, all_accepted)
        assert all_true(target)


async def test_a_stranger_is_refused_with_what_differs() -> None:
    async with serving() as (server, address):
        with pytest.raises(ConfigError, match="same size but different tokens"):
            async with drafting(address, hello=replace(HELLO, tokenizer_hash="other")):
                pass
        with pytest.raises(ConfigError, match="has 47 tokens, toy target has 48"):
            async with drafting(address, hello=replace(HELLO, vocab_size=47)):
                pass
        assert server.proposer.counters.refused_drafts == 2


async def test_the_drill_of_a_useless_draft_is_never_right_and_changes_nothing() -> None:
    async with serving() as (server, address):
        target = ToyTarget(server.proposer)
        target.open(1, 2)
        async with drafting(address, drill=DrillConfig(useless_draft=True)):
            drafted = 0
            for _ in range(40):
                accepted = await asyncio.to_thread(target.step)
                drafted += server.proposer.counters.rounds
                assert sum(accepted.values()) <= 2
        assert drafted > 0
        assert all_true(target)


async def test_the_drill_of_a_slow_draft_is_felt_in_the_round() -> None:
    async with serving() as (server, address):
        target = ToyTarget(server.proposer)
        target.open(1)
        async with drafting(address, drill=DrillConfig(draft_delay_ms=120)):
            await steps_until(target, all_accepted)
            began = time.monotonic()
            for _ in range(3):
                await asyncio.to_thread(target.step)
            assert time.monotonic() - began > 3 * 0.1
        assert all_true(target)


@pytest.mark.parametrize("useless", [False, True], ids=["honest", "drilled"])
async def test_a_judged_draft_names_what_it_drew_from_over_the_wire(useless: bool) -> None:
    judging = replace(settings(), identity=replace(IDENTITY, wants_distributions=True), was_drawn=was_drawn)
    hello = replace(HELLO, names_distributions=True)
    async with serving(judging) as (server, address):
        target = ToyTarget(server.proposer)
        target.open(1, 2)
        async with drafting(address, hello=hello, drill=DrillConfig(useless_draft=useless)):
            were_whole: list[bool] = []

            def ten_rounds(accepted: dict[int, int]) -> bool:
                were_whole.append(all_accepted(accepted))
                return server.proposer.counters.rounds >= 10 * 2

            await steps_until(target, ten_rounds)
            assert any(were_whole) == (not useless)
            assert all_true(target)
    assert server.proposer.counters.wrong == 0


async def test_a_draft_from_before_distributions_is_refused_where_they_are_needed() -> None:
    judging = replace(settings(), identity=replace(IDENTITY, wants_distributions=True), was_drawn=was_drawn)
    async with serving(judging) as (_, address):
        with pytest.raises(ConfigError, match="acceptance 'rejection' needs: update the draft worker"):
            async with drafting(address, hello=HELLO):
                pass


async def test_drafting_ahead_over_the_wire_is_ready_before_the_verdict() -> None:
    async with serving(settings(draft_ahead=True)) as (server, address):
        target = ToyTarget(server.proposer)
        target.open(1, 2)
        async with drafting(address):
            await steps_until(target, all_accepted)
            await asyncio.sleep(0.1)
            answers: list[DraftMessage] = []
            deliver = server.proposer.deliver

            def listen(message: DraftMessage, link: object) -> None:
                answers.append(message)
                deliver(message, link)  # type: ignore[arg-type]

            server.proposer.deliver = listen  # type: ignore[method-assign]
            await asyncio.to_thread(target.step)
            await eventually(lambda: bool(answers))
        assert isinstance(answers[0], tuple)
        assert all(item.was_ready for item in answers[0])
        assert all_true(target)

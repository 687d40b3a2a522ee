"""A toy target that steps against a real verify server, real draft workers on a fake model, and bare streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from fleet.clock import SystemClock
from fleet.config import DrillConfig, TlsConfig
from fleet.generation import SamplingParams
from replicas.draft_engine import DraftEngine
from replicas.draft_loop import DraftLoop
from replicas.draft_worker import DraftIdentity, DraftWorker
from replicas.engine.packing import Segment
from replicas.engine.sampling import Sampler
from replicas.speculation.acceptance import accept
from replicas.speculation.draft_session import DraftLimits
from replicas.speculation.messages import PROTOCOL_VERSION, Closing, Hello, Opening, Proposal, SequenceVerdict
from replicas.speculation.pairing import Identity
from replicas.speculation.proposer import Want
from replicas.speculation.target_session import TargetSettings
from replicas.speculation.tree import Draft
from replicas.verify_rpc.proposer import RemoteProposer
from replicas.verify_rpc.server import VerifyServer
from tests.fake_model import FakeModel

VOCABULARY = 48
DRAFT_LENGTH = 4
HELLO = Hello(PROTOCOL_VERSION, "hash", VOCABULARY, "toy draft", "", 512, DRAFT_LENGTH)
IDENTITY = Identity("toy target", "hash", VOCABULARY, 512)
GREEDY = SamplingParams(seed=1, max_tokens=500, temperature=0.0)
LIMITS = DraftLimits(VOCABULARY, 512, DRAFT_LENGTH, 256)


def settings(*, draft_ahead: bool = False, ceiling: float = 2.0) -> TargetSettings:
    return TargetSettings(IDENTITY, 0.05, ceiling, draft_ahead)


def next_token(text: list[int]) -> int:
    """What the target writes next: the draft's model, read without a cache."""
    return int(FakeModel().forward([Segment(0, 0, tuple(text), 1)]).logits[0].argmax())


@dataclass
class ToyTarget:
    """Runs the engine's part of the protocol for a few sequences and checks every text."""

    proposer: RemoteProposer
    vocab_size: int = VOCABULARY
    texts: dict[int, list[int]] = field(default_factory=dict)

    def open(self, *sequence_ids: int) -> None:
        for sequence_id in sequence_ids:
            text = [3, 4, 5, sequence_id]
            text.append(next_token(text))
            self.texts[sequence_id] = text
            self.proposer.open(Opening(sequence_id, 1, tuple(text), 4, GREEDY, 0, DRAFT_LENGTH))

    def step(self) -> dict[int, int]:
        """One engine step; accepted tokens by sequence. The text is the target's own whatever is proposed."""
        wants = [Want(key, 1, len(text), DRAFT_LENGTH) for key, text in self.texts.items()]
        proposals = self.proposer.propose(wants)
        verdicts = [self._verify(key, proposals.get(key)) for key in self.texts]
        self.proposer.settle(verdicts)
        return {verdict.sequence_id: verdict.accepted for verdict in verdicts}

    def close(self) -> None:
        self.proposer.close(Closing(tuple(self.texts), "done"))
        self.texts.clear()

    def _verify(self, sequence_id: int, proposal: Proposal | None) -> SequenceVerdict:
        text, drafted = self.texts[sequence_id], proposal.token_ids if proposal else ()
        assert len(drafted) <= DRAFT_LENGTH
        assert all(0 <= token < self.vocab_size for token in drafted)
        rows = [next_token([*text, *drafted[:count]]) for count in range(len(drafted) + 1)]
        acceptance = accept(Draft(tuple(drafted)), rows)
        verdict = SequenceVerdict(sequence_id, 1, len(text), acceptance.accepted, acceptance.committed, DRAFT_LENGTH)
        text += acceptance.committed
        return verdict


@asynccontextmanager
async def serving(
    chosen: TargetSettings | None = None, tls: TlsConfig | None = None
) -> AsyncIterator[tuple[VerifyServer, str]]:
    server = VerifyServer(chosen or settings(), SystemClock())
    address = await server.start("127.0.0.1", tls)
    try:
        yield server, address
    finally:
        await server.close()


def new_engine(model: FakeModel | None = None) -> DraftEngine:
    return DraftEngine(model or FakeModel(), Sampler(VOCABULARY, frozenset({2})))


@asynccontextmanager
async def drafting(
    address: str,
    *,
    engine: DraftEngine | None = None,
    hello: Hello = HELLO,
    tls: TlsConfig | None = None,
    drill: DrillConfig | None = None,
) -> AsyncIterator[DraftWorker]:
    """A worker that is connected when the block begins."""
    loop = DraftLoop(engine or new_engine(), LIMITS, SystemClock())
    worker = DraftWorker(loop, DraftIdentity(hello, address, tls, drill or DrillConfig()))
    try:
        await worker.wait_connected(10.0)
        yield worker
    finally:
        await worker.close()


@asynccontextmanager
async def bare_stream(address: str) -> AsyncIterator[grpc.aio.StreamStreamCall]:
    """The verify stream with bytes in and out, to say what no honest draft would."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(
            "/fleet.verify.v1.Verify/Session",
            request_serializer=bytes,
            response_deserializer=bytes,
        )()
        try:
            yield call
        finally:
            call.cancel()


async def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 — what is waited for happens in threads and other processes
            await asyncio.sleep(0.005)


async def steps_until(
    target: ToyTarget, condition: Callable[[dict[int, int]], bool], *, limit: int = 400, pause: float = 0.002
) -> int:
    """Step, `pause` seconds apart, until the accepted tokens satisfy the condition; how many steps that took."""
    for number in range(limit):
        if condition(await asyncio.to_thread(target.step)):
            return number
        await asyncio.sleep(pause)
    raise AssertionError(f"not within {limit} steps")


def all_accepted(accepted: dict[int, int]) -> bool:
    return bool(accepted) and all(count == DRAFT_LENGTH for count in accepted.values())


def all_true(target: ToyTarget) -> bool:
    """Every text is what the target writes on its own."""
    for sequence_id, text in target.texts.items():
        own = [3, 4, 5, sequence_id]
        while len(own) < len(text):
            own.append(next_token(own))
        if own != text:
            return False
    return True

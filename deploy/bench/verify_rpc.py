"""What does the verify stream itself cost per round? Measured on loopback against a draft that answers at once, in
turns with a bare gRPC stream that has the same hand-over between threads."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated

import numpy as np
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from deploy.bench.bare_stream import bare_rounds, loop_in_thread, timed_rounds
from fleet.clock import SystemClock
from fleet.errors import DraftUnavailable
from fleet.generation import SamplingParams
from replicas.engine.sampling import DRAFT_TOKENS
from replicas.speculation.messages import (
    PROTOCOL_VERSION,
    Closing,
    Hello,
    Opening,
    Proposal,
    SequenceMessage,
    SequenceVerdict,
)
from replicas.speculation.pairing import Identity
from replicas.speculation.proposer import ProposerHealth, Want
from replicas.speculation.rejection import Sparse
from replicas.speculation.target_session import TargetSettings
from replicas.verify_rpc.client import dial
from replicas.verify_rpc.codec import draft_frame, draft_message_from, target_frame, target_message_from
from replicas.verify_rpc.proposer import RemoteProposer
from replicas.verify_rpc.server import VerifyServer
from replicas.verify_rpc.verify_pb2 import DraftFrame, TargetFrame

VOCABULARY = 50_000
CONTEXT_TOKENS = 1_000_000
DRAFT_LENGTH = 4
WARM_UP_ROUNDS = 50
TURN = 100
"""Rounds of one stream before it is the other's turn."""
SEQUENCES = (1, 8, 32)
PAUSES_SECONDS = (0.0, 0.002)
"""A target's step lies between two rounds; without one the threads never come to rest."""
BYTES_PER_SEQUENCE = 24
"""About what a sequence takes in a frame of verdicts."""
CONNECT_SECONDS = 60.0


def measure(sequences: int, rounds: int, pause_seconds: float) -> tuple[list[float], list[float]]:
    """Seconds per round of the verify stream, from the verdicts of a step to holding all its next proposals, and
    of a bare stream that carries as many bytes; in turns of a hundred rounds.

    The target runs in its own thread, with the event loop in another and the draft in another process. Raises
    DraftUnavailable when the draft process does not come up or answers no round completely.
    """
    with loop_in_thread() as loop, verify_rounds(loop, sequences) as target, bare_rounds(loop) as bare:
        frame = bytes(BYTES_PER_SEQUENCE * sequences)
        ours, theirs = [], []
        target.timed(WARM_UP_ROUNDS, pause_seconds)
        timed_rounds(bare, frame, WARM_UP_ROUNDS, pause_seconds)
        for _ in range(max(1, rounds // TURN)):
            ours += target.timed(TURN, pause_seconds)
            theirs += timed_rounds(bare, frame, TURN, pause_seconds)
        if not ours:
            raise DraftUnavailable("the draft answered no round completely")
        return ours, theirs


@contextmanager
def verify_rounds(loop: asyncio.AbstractEventLoop, sequences: int) -> Iterator[_Target]:
    """A target whose draft, in another process, has connected."""
    settings = TargetSettings(Identity("bench", "", VOCABULARY, CONTEXT_TOKENS), 1.0, 1.0)
    server = VerifyServer(settings, SystemClock())
    address = asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    draft = multiprocessing.get_context("spawn").Process(target=_run_draft, args=(address,), daemon=True)
    draft.start()
    try:
        _wait_for_draft(server.proposer)
        yield _Target(server.proposer, sequences)
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result()
        draft.join()


class _Target:
    """The engine's side of `sequences` sequences that decode for ever."""

    def __init__(self, proposer: RemoteProposer, sequences: int) -> None:
        self._proposer = proposer
        self._keys = range(sequences)
        self._length = 3
        sampling = SamplingParams(seed=0, max_tokens=CONTEXT_TOKENS)
        for key in self._keys:
            proposer.open(Opening(key, 1, (1, 2, 3), 2, sampling, 0, DRAFT_LENGTH))

    def timed(self, rounds: int, pause_seconds: float) -> list[float]:
        """Seconds of each round in which every sequence got its proposal."""
        seconds = []
        for _ in range(rounds):
            verdicts = [SequenceVerdict(key, 1, self._length, 2, (7, 8, 9), DRAFT_LENGTH) for key in self._keys]
            self._length += 3
            wants = [Want(key, 1, self._length, DRAFT_LENGTH) for key in self._keys]
            began = time.perf_counter()
            self._proposer.settle(verdicts)
            answers = self._proposer.propose(wants)
            took = time.perf_counter() - began
            # A round in which the draft still read a prompt says nothing about the stream.
            if all(key in answers and len(answers[key].token_ids) == DRAFT_LENGTH for key in self._keys):
                seconds.append(took)
            time.sleep(pause_seconds)
        return seconds


def _wait_for_draft(proposer: RemoteProposer) -> None:
    end = time.monotonic() + CONNECT_SECONDS
    while proposer.state().health != ProposerHealth.HEALTHY:
        if time.monotonic() > end:
            raise DraftUnavailable(f"the draft process did not connect within {CONNECT_SECONDS:.0f} s")
        time.sleep(0.05)


def _run_draft(address: str) -> None:
    uvloop.run(_answer_at_once(address))


async def _answer_at_once(address: str) -> None:
    hello = Hello(PROTOCOL_VERSION, "", VOCABULARY, "no-op", "", CONTEXT_TOKENS, DRAFT_LENGTH)
    try:
        async with dial(address, hello, None) as (stream, _):
            while (message := await stream.receive()) is not None:
                proposals = _proposals(message)
                if proposals:
                    await stream.send([proposals])
    except DraftUnavailable:
        return


def _proposals(message: SequenceMessage) -> tuple[Proposal, ...]:
    tokens = tuple(range(100, 100 + DRAFT_LENGTH))
    match message:
        case Opening():
            return (Proposal(message.sequence_id, message.epoch, len(message.token_ids), tokens),)
        case Closing():
            return ()
        case verdicts:
            return tuple(
                Proposal(item.sequence_id, item.epoch, item.base_length + len(item.committed), tokens)
                for item in verdicts
            )


def codec_seconds(sequences: int, repetitions: int = 500, *, support: int = 0) -> float:
    """Seconds of CPU that both ends spend on one round's two frames: message to bytes and back, no wire.

    With a `support` every token names a distribution over so many tokens, as acceptance by rejection needs.
    """
    keys = range(sequences)
    verdicts = tuple(SequenceVerdict(key, 1, 100, 2, (7, 8, 9), DRAFT_LENGTH) for key in keys)
    named = (Sparse(tuple(range(support)), (1 / support,) * support),) * DRAFT_LENGTH if support else ()
    proposals = tuple(replace(item, distributions=named) for item in _proposals(verdicts))
    began = time.process_time()
    for _ in range(repetitions):
        target_message_from(TargetFrame.FromString(target_frame(verdicts).SerializeToString()))
        draft_message_from(DraftFrame.FromString(draft_frame(proposals).SerializeToString()))
    return (time.process_time() - began) / repetitions


def main(
    rounds: Annotated[int, typer.Option(min=TURN, help="Rounds of each stream and row.")] = 1000,
    sequences: Annotated[list[int] | None, typer.Option(min=1, help="Sequences in a frame; repeat for more.")] = None,
) -> None:
    """Measure the cost of a verify round beside a bare gRPC stream."""
    table = Table(title="verify round: wire alone, codec alone, and the whole round with session and engine thread")
    for heading in ("sequences", "ms between rounds", "wire p50 ms", "p95", "codec ms", "named", "round p50 ms", "p95"):
        table.add_column(heading, justify="right")
    for count in sequences or SEQUENCES:
        for pause in PAUSES_SECONDS:
            ours, bare = measure(count, rounds, pause)
            codec = (codec_seconds(count), codec_seconds(count, support=DRAFT_TOKENS))
            figures = (*np.percentile(bare, (50, 95)), *codec, *np.percentile(ours, (50, 95)))
            table.add_row(str(count), f"{1000 * pause:g}", *(f"{1000 * value:.2f}" for value in figures))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)

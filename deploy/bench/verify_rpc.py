"""What does the verify stream itself cost per round? Measured on loopback against a draft that answers at once."""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from dataclasses import dataclass
from threading import Thread

import numpy as np
import uvloop
from rich.console import Console
from rich.table import Table

from fleet.clock import SystemClock
from fleet.errors import DraftUnavailable
from fleet.generation import SamplingParams
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
from replicas.speculation.target_session import TargetSettings
from replicas.verify_rpc.client import dial
from replicas.verify_rpc.proposer import RemoteProposer
from replicas.verify_rpc.server import VerifyServer

VOCABULARY = 50_000
CONTEXT_TOKENS = 1_000_000
DRAFT_LENGTH = 4
WARM_UP_ROUNDS = 50
CONNECT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Seconds from handing over the verdicts of a step to holding the next proposals of all its sequences."""

    sequences: int
    rounds: int
    """Complete ones, in which every sequence got its proposal; only these are timed."""
    incomplete: int
    p50_seconds: float
    p95_seconds: float


def measure(sequences: int, rounds: int) -> RoundCost:
    """Run a target's rounds from its own thread, with the event loop in another and the draft in another process.

    Raises DraftUnavailable when the draft process does not come up.
    """
    loop = uvloop.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    settings = TargetSettings(Identity("bench", "", VOCABULARY, CONTEXT_TOKENS), 1.0, 1.0)
    server = VerifyServer(settings, SystemClock())
    address = asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    draft = multiprocessing.get_context("spawn").Process(target=_run_draft, args=(address,), daemon=True)
    draft.start()
    try:
        _wait_for_draft(server.proposer)
        complete, incomplete = _run_rounds(server.proposer, sequences, rounds)
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result()
        draft.join()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    if not complete:
        raise DraftUnavailable("the draft answered no round completely")
    p50, p95 = np.percentile(complete, (50, 95))
    return RoundCost(sequences, len(complete), incomplete, float(p50), float(p95))


def _wait_for_draft(proposer: RemoteProposer) -> None:
    end = time.monotonic() + CONNECT_SECONDS
    while proposer.state().health != ProposerHealth.HEALTHY:
        if time.monotonic() > end:
            raise DraftUnavailable(f"the draft process did not connect within {CONNECT_SECONDS:.0f} s")
        time.sleep(0.05)


def _run_rounds(proposer: RemoteProposer, sequences: int, rounds: int) -> tuple[list[float], int]:
    sampling = SamplingParams(seed=0, max_tokens=CONTEXT_TOKENS)
    for key in range(sequences):
        proposer.open(Opening(key, 1, (1, 2, 3), 2, sampling, 0, DRAFT_LENGTH))
    length, complete, incomplete = 3, [], 0
    for number in range(WARM_UP_ROUNDS + rounds):
        verdicts = [SequenceVerdict(key, 1, length, 2, (7, 8, 9), DRAFT_LENGTH) for key in range(sequences)]
        length += 3
        wants = [Want(key, 1, length, DRAFT_LENGTH) for key in range(sequences)]
        began = time.perf_counter()
        proposer.settle(verdicts)
        answers = proposer.propose(wants)
        seconds = time.perf_counter() - began
        # A target's step, short; without one the threads never come to rest between two rounds.
        time.sleep(0.002)
        if number < WARM_UP_ROUNDS:
            continue
        if all(key in answers and len(answers[key].token_ids) == DRAFT_LENGTH for key in range(sequences)):
            complete.append(seconds)
        else:
            incomplete += 1
    proposer.close(Closing(tuple(range(sequences)), "done"))
    return complete, incomplete


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


def main() -> None:
    """Print the cost of a round for several batch sizes."""
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.verify_rpc", description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32])
    arguments = parser.parse_args()
    table = Table("sequences", "rounds", "incomplete", "p50 ms", "p95 ms", title="verify round on loopback")
    for sequences in arguments.sequences:
        cost = measure(sequences, arguments.rounds)
        table.add_row(
            str(cost.sequences),
            str(cost.rounds),
            str(cost.incomplete),
            f"{1000 * cost.p50_seconds:.3f}",
            f"{1000 * cost.p95_seconds:.3f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()

"""The target worker: a model that answers, its engine, its proposer, and the socket that its tokens leave by."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from dataclasses import dataclass, field

import torch
from pydantic import TypeAdapter, ValidationError

from fleet.clock import Clock, SystemClock
from fleet.config import (
    HEAD_METHODS,
    LOOKUP_METHODS,
    DrillConfig,
    EngineConfig,
    ModelConfig,
    SpeculativeConfig,
    explain,
)
from fleet.errors import ConfigError
from fleet.traffic import ReplicaReport
from replicas.compatibility.check import pair_of, require_pair
from replicas.drill import DrilledSteps
from replicas.engine.loop import Engine
from replicas.engine.sampling import Sampler
from replicas.engine.speculator import Speculator
from replicas.engine.step import StepRunner
from replicas.engine_thread import EngineThread
from replicas.heads.loading import PublishedHead, read_head
from replicas.health_probe import HealthProbe
from replicas.proposing import Place, Proposing, in_process, remote_draft
from replicas.speculation.proposer import ProposerHealth, ProposerState
from replicas.stream_ledger import StreamLedger
from replicas.target_model import TargetModel, load_target
from replicas.token_server import TokenServer

NO_PROPOSER = ProposerState(ProposerHealth.NONE, draft_seconds=0.0, wire_seconds=0.0)
PROBE_SECONDS = 20.0
"""A health probe that has not got its token by then has failed."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Everything a target worker needs to know."""

    path: str
    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    speculative: SpeculativeConfig | None = None
    drill: DrillConfig | None = None
    host: str = "127.0.0.1"


class TargetWorker:
    """One running copy of the model. Lives in one event loop; the engine has a thread of its own."""

    def __init__(
        self, settings: WorkerSettings, target: TargetModel, proposing: Proposing | None, clock: Clock
    ) -> None:
        self._path = settings.path
        self._proposing = proposing
        self._may_pause_drafting = _may_pause_drafting(settings.speculative)
        self._probe_token = min(target.tokenizer.eos_token_ids, default=0)
        self._engine = EngineThread(_make_engine(settings, target, proposing, clock), asyncio.get_running_loop())
        self._ledger = StreamLedger()
        self._server = TokenServer(self._engine, self._ledger)
        self._reported = self._engine.stats
        self._seen_tokens = 0
        self.tokens_address = ""
        """"host:port" once started."""
        self.verify_address = proposing.verify_address if proposing else None

    @classmethod
    async def start(cls, settings: WorkerSettings, clock: Clock | None = None) -> TargetWorker:
        """Load, warm up and listen. Raises ConfigError in one line where the settings cannot work."""
        clock = clock or SystemClock()
        head = await asyncio.to_thread(_read_head, settings.speculative)
        target = await asyncio.to_thread(load_target, settings.model, settings.engine, logger.info, head)
        worker = cls(settings, target, await _start_proposing(settings, target, head, clock), clock)
        worker.tokens_address = await worker._server.start(settings.host)
        worker._engine.start()
        return worker

    async def finished(self, request_id: str, arrive_within_seconds: float) -> None:
        """Return when that stream has ended, or has not arrived in time: so long the request holds its slot."""
        await self._ledger.finished(request_id, arrive_within_seconds)

    def report(self, replica_id: str) -> ReplicaReport:
        """How the replica is; the mean time of a step is over those since the last report that only decoded."""
        stats, before = self._engine.stats, self._reported
        self._reported = stats
        steps = max(1, stats.decoding_steps - before.decoding_steps)
        draft = self._proposing.proposer.state() if self._proposing else NO_PROPOSER
        return ReplicaReport(
            path=self._path,
            replica_id=replica_id,
            pid=os.getpid(),
            running=stats.running,
            waiting=stats.waiting,
            kv_used_tokens=stats.kv_used_tokens,
            kv_total_tokens=stats.kv_total_tokens,
            preemptions=stats.preemptions,
            output_tokens=stats.output_tokens,
            draft=draft.health,
            draft_seconds=draft.draft_seconds,
            verify_seconds=(stats.decoding_seconds - before.decoding_seconds) / steps,
            accept_seconds=(stats.accepting_seconds - before.accepting_seconds) / steps,
            gpu_memory_bytes=torch.cuda.max_memory_allocated(),
            wire_seconds=draft.wire_seconds,
            out_of_memory=stats.out_of_memory + draft.out_of_memory,
            running_limit=stats.running_limit,
            draft_tokens=self._proposing.policy.max_draft_tokens if self._proposing else 0,
            may_pause_drafting=self._may_pause_drafting,
            draft_link=self._proposing.draft_link() if self._proposing else {},
        )

    async def check_health(self) -> None:
        """Return when the model is known to generate: by tokens since the last check, else by one of its own.

        Raises ReplicaLost or DeadlineExceeded.
        """
        tokens, seen = self._engine.stats.output_tokens, self._seen_tokens
        self._seen_tokens = tokens
        if tokens == seen:
            await HealthProbe(self._probe_token).run(self._engine, PROBE_SECONDS)

    async def close(self, grace_seconds: float) -> None:
        """Let open streams finish for so long, fail the rest, and end thread and sockets."""
        await self._server.drain(grace_seconds)
        await asyncio.to_thread(self._engine.stop)
        if self._proposing is not None:
            await self._proposing.close()


def _read_head(speculative: SpeculativeConfig | None) -> PublishedHead | None:
    if speculative is None or speculative.method not in HEAD_METHODS:
        return None
    return read_head(speculative, logger.info)


async def _start_proposing(
    settings: WorkerSettings, target: TargetModel, head: PublishedHead | None, clock: Clock
) -> Proposing | None:
    speculative = settings.speculative
    if speculative is None:
        return None
    pair = pair_of(settings.model, speculative)
    await asyncio.to_thread(require_pair, pair, logger.info, target.tokenizer)
    if speculative.method == "draft_model":
        return await remote_draft(speculative, settings.host, settings.model, target, clock)
    place = Place(target, settings.engine.max_num_seqs, settings.drill, clock)
    return await asyncio.to_thread(in_process, speculative, head, place)


def _may_pause_drafting(speculative: SpeculativeConfig | None) -> bool:
    return speculative is not None and speculative.adaptive and speculative.method not in LOOKUP_METHODS


def _make_engine(settings: WorkerSettings, target: TargetModel, proposing: Proposing | None, clock: Clock) -> Engine:
    sampler = Sampler(target.vocab_size, target.tokenizer.eos_token_ids)
    return Engine(
        target.model,
        target.tokenizer,
        settings.engine,
        runner=StepRunner(target.model, sampler, DrilledSteps(settings.drill) if settings.drill else None),
        speculator=_make_speculator(proposing, target.vocab_size, clock) if proposing else None,
        clock=clock,
    )


def _make_speculator(proposing: Proposing, vocab_size: int, clock: Clock) -> Speculator:
    return Speculator(proposing.proposer, proposing.policy, vocab_size, clock, proposing.reader)


async def _run_until_signalled(settings: WorkerSettings) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    worker = await TargetWorker.start(settings)
    addresses = {"tokens_address": worker.tokens_address, "verify_address": worker.verify_address}
    sys.stdout.write(json.dumps(addresses) + "\n")
    sys.stdout.flush()
    await stopping.wait()
    await worker.close(grace_seconds=0.0)


def main() -> None:
    """Run one target worker as a plain process until it is told to stop; its addresses are one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m replicas.target_worker", description=main.__doc__)
    parser.add_argument("--settings", required=True, help="WorkerSettings as JSON")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s target: %(message)s")
    try:
        asyncio.run(_run_until_signalled(TypeAdapter(WorkerSettings).validate_json(arguments.settings)))
    except ValidationError as error:
        raise SystemExit(f"--settings: {explain(error)}") from error
    except ConfigError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()

"""Does anything leak? Mixed requests with cancels, preemptions and draft restarts, and after each turn a look at rest.

Target worker, draft worker, verify stream and token stream are the real ones, in this one process, so that everything
they hold can be counted.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Literal

import psutil
import typer
from rich.console import Console
from rich.table import Table

from deploy.bench.growth import Reading, container_sizes, grown
from deploy.bench.soak_traffic import Errand, errands
from fleet.clock import SystemClock
from fleet.config import DEFAULT_MODEL, EngineConfig, ModelConfig, SpeculativeConfig
from fleet.errors import FleetError
from replicas.draft_loop import DraftLoop
from replicas.draft_model import Draft, load_draft
from replicas.draft_worker import DraftIdentity, DraftWorker
from replicas.target_worker import TargetWorker, WorkerSettings
from router.token_client import TokenClient

CLIENTS = 8
KV_TOKENS = 420
"""Too few for eight long requests, so that some are preempted."""
REST_SECONDS = 150.0
"""Within this everything must have come to rest: a draft that missed a closing frees its cache when the lease ends."""
CONNECT_SECONDS = 30.0


class NotAtRest(FleetError):
    """Slots or blocks stay taken."""


@dataclass
class SoakPair:
    """A target worker and its draft, which can be taken away and brought back."""

    target: TargetWorker
    client: TokenClient
    draft: Draft
    worker: DraftWorker | None = None
    restarts: int = -1
    outcomes: Counter[str] = field(default_factory=Counter)

    async def bring_draft(self) -> None:
        assert self.target.verify_address is not None, "the proposer is a draft model"
        loop = DraftLoop(self.draft.engine, self.draft.limits, SystemClock())
        self.worker = DraftWorker(loop, DraftIdentity(self.draft.hello, self.target.verify_address))
        await self.worker.wait_connected(CONNECT_SECONDS)
        self.restarts += 1

    async def take_draft(self) -> None:
        """In the middle of whatever it does."""
        if self.worker is not None:
            await self.worker.close()
            self.worker = None

    async def run(self, errand: Errand) -> None:
        """One client's request, to its end or as long as it has patience."""
        left = errand.leaves_after
        try:
            async with aclosing(self.client.generate(errand.request)) as chunks:
                async for chunk in chunks:
                    left = left if left is None else left - 1
                    if chunk.finish is None and left is not None and left < 0:
                        self.outcomes["left"] += 1
                        break
                else:
                    self.outcomes["answered"] += 1
        except FleetError as error:
            self.outcomes[type(error).__name__] += 1
        await self.target.finished(errand.request.request_id, CONNECT_SECONDS)

    def reading(self) -> Reading:
        gc.collect()
        process = psutil.Process()
        sizes = container_sizes((self.target, self.worker, self.draft, self.client))
        return Reading(sizes, process.memory_info().rss, process.num_fds())

    def is_at_rest(self) -> bool:
        report = self.target.report("soak")
        return report.running == report.waiting == report.kv_used_tokens == self.draft.engine.used_tokens == 0


async def soak(settings: WorkerSettings, turns: int, requests_per_turn: int) -> tuple[SoakPair, list[Reading]]:
    """Load in turns, with the draft taken away in the middle of each; one reading at rest after every turn.

    Raises ConfigError where the settings cannot work, NotAtRest where slots or blocks stay taken.
    """
    assert settings.speculative is not None, "a soak needs a draft"
    draft = await asyncio.to_thread(load_draft, settings.model, settings.speculative, settings.engine)
    target = await TargetWorker.start(settings)
    pair = SoakPair(target, TokenClient(target.tokens_address), draft)
    source = errands(1, draft.limits.vocab_size)
    readings = []
    try:
        await pair.bring_draft()
        for _ in range(turns):
            await _turn(pair, source, requests_per_turn)
            await _rest(pair)
            readings.append(pair.reading())
    finally:
        await pair.client.close()
        await pair.take_draft()
        await target.close(grace_seconds=0.0)
    return pair, readings


async def _turn(pair: SoakPair, source: Iterator[Errand], requests: int) -> None:
    """So many requests by a few clients; half way the draft dies in the middle of its work and another one joins."""
    mine = enumerate(itertools.islice(source, requests))
    half_way = asyncio.Event()

    async def client() -> None:
        for number, errand in mine:
            if number == requests // 2:
                half_way.set()
            await pair.run(errand)

    async with asyncio.TaskGroup() as clients:
        for _ in range(CLIENTS):
            clients.create_task(client())
        await half_way.wait()
        await pair.take_draft()
        await pair.bring_draft()


async def _rest(pair: SoakPair) -> None:
    """Wait until nothing is held any more."""
    try:
        async with asyncio.timeout(REST_SECONDS):
            while not pair.is_at_rest():  # noqa: ASYNC110 (what is waited for happens in other threads)
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        held = pair.target.report("soak")
        raise NotAtRest(
            f"{held.running} running, {held.waiting} waiting, {held.kv_used_tokens} KV tokens taken, "
            f"{pair.draft.engine.used_tokens} at the draft, with no request open"
        ) from error


def report(console: Console, pair: SoakPair, readings: Sequence[Reading]) -> None:
    table = Table(title="at rest after each turn")
    for heading in ("turn", "elements in containers", "memory MiB", "descriptors"):
        table.add_column(heading, justify="right")
    for number, reading in enumerate(readings, start=1):
        elements, memory = sum(reading.sizes.values()), reading.memory_bytes / 2**20
        table.add_row(str(number), str(elements), f"{memory:.1f}", str(reading.descriptors))
    console.print(table)
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(pair.outcomes.items()))
    preemptions = pair.target.report("soak").preemptions
    console.print(f"{outcomes}; {preemptions} preemptions, {pair.restarts} draft restarts")


def main(
    turns: Annotated[int, typer.Option(min=5)] = 60,
    requests: Annotated[int, typer.Option(min=CLIENTS, help="Requests of each turn.")] = 200,
    model: Annotated[str, typer.Option(help="Hub id, local folder or GGUF file.")] = DEFAULT_MODEL,
    layers: Annotated[int, typer.Option(min=1, help="Layers of it that draft.")] = 2,
    acceptance: Annotated[Literal["coupled", "rejection"], typer.Option()] = "coupled",
) -> None:
    """Load a target and its draft in turns and look for whatever grows; exit code 1 where something does."""
    console = Console()
    settings = WorkerSettings(
        "soak",
        ModelConfig(model=model),
        EngineConfig(kv_cache_tokens=KV_TOKENS, max_num_seqs=CLIENTS),
        SpeculativeConfig(method="draft_model", layers=layers, acceptance=acceptance),
    )
    try:
        pair, readings = asyncio.run(soak(settings, turns, requests))
    except FleetError as error:
        raise SystemExit(f"soak: {error}") from error
    report(console, pair, readings)
    problems = grown(readings)
    for problem in problems:
        console.print(f"[red]{problem}[/red]")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    typer.run(main)

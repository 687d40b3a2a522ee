"""Load in turns on one proposer, with the draft taken away in the middle of each, and a look at rest after every turn.

Target worker, verify stream, token stream and, but where it is killed, the draft worker are the real ones, in this one
process, so that everything they hold can be counted.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import psutil

from deploy.bench.growth import Reading, container_sizes
from deploy.bench.prompts import load_prompts
from deploy.bench.soak.drafts import DraftLife, InnerDraft, KilledDraft
from deploy.bench.soak.errands import Errand, errands, prompt_ids
from deploy.bench.soak.held import NOTHING, Held, held
from deploy.bench.soak.outcome import Soaked
from fleet.errors import FleetError
from fleet.generation import TokenChunk
from fleet.tokenizer import Tokenizer
from replicas.draft_worker import DraftSettings
from replicas.model_store import resolve_model
from replicas.target_worker import TargetWorker, WorkerSettings
from router.token_client import TokenClient

ARRIVE_SECONDS = 30.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked in a turn, and how long it may take to come to rest."""

    clients: int = 8
    requests: int = 24
    longest_prompt: int = 160
    rest_seconds: float = 150.0
    """A draft that missed a closing frees its cache when the lease ends."""


class Pair:
    """A target worker, its client, and its draft, if it has one that can be taken away and brought back."""

    def __init__(self, target: TargetWorker, draft: DraftLife | None) -> None:
        self.target = target
        self.client = TokenClient(target.tokens_address)
        self.draft = draft
        self.restarts = 0
        self.drafted = 0
        self.outcomes: Counter[str] = Counter()

    async def restart_draft(self) -> None:
        if self.draft is not None:
            await self.draft.take()
            await self.draft.bring()
            self.restarts += 1

    async def run(self, errand: Errand) -> None:
        """One client's request, to its end or as long as it has patience."""
        try:
            self.outcomes[await self._outcome(errand)] += 1
        except FleetError as error:
            self.outcomes[type(error).__name__] += 1
        await self.target.finished(errand.request.request_id, ARRIVE_SECONDS)

    async def _outcome(self, errand: Errand) -> str:
        read = itertools.count()
        async with aclosing(self.client.generate(errand.request)) as chunks:
            async for chunk in chunks:
                self._note(chunk)
                if chunk.finish is None and next(read) == errand.leaves_after:
                    return "left"
        return "answered"

    def _note(self, chunk: TokenChunk) -> None:
        self.drafted += chunk.round.drafted if chunk.round is not None else 0

    def roots(self) -> Iterator[object]:
        yield from (self.target, self.client)
        if self.draft is not None:
            yield from self.draft.roots()

    def reading(self) -> Reading:
        gc.collect()
        _trim()
        process = psutil.Process()
        sizes, requests = container_sizes(self.roots()), sum(self.outcomes.values())
        return Reading(requests, sizes, process.memory_info().rss, process.num_fds())

    async def close(self) -> None:
        await self.client.close()
        if self.draft is not None:
            await self.draft.take()
        await self.target.close(grace_seconds=0.0)


async def soak(
    settings: WorkerSettings, load: Load, goes_on: Callable[[int], bool], *, kills_draft: bool = False
) -> Soaked:
    """Turns as long as `goes_on`, asked with the number of turns so far, says so; ends early where rest never comes.

    With `kills_draft` a draft model works in a process of its own, which is killed. Raises ConfigError where the
    settings cannot work, DraftUnavailable where a draft does not come up.
    """
    tokenizer = await asyncio.to_thread(lambda: Tokenizer.load(resolve_model(settings.model, logger.info)))
    prompts = prompt_ids(load_prompts(), tokenizer, load.longest_prompt)
    source = errands(1, prompts, tokenizer.vocab_size)
    target = await TargetWorker.start(settings)
    pair = Pair(target, await _draft_of(settings, target, kills_draft))
    readings: list[Reading] = []
    left = NOTHING
    try:
        if pair.draft is not None:
            await pair.draft.bring()
        while left.is_nothing and goes_on(len(readings)):
            await _turn(pair, list(itertools.islice(source, load.requests)), load.clients)
            left = await _rest(pair, load.rest_seconds)
            readings.append(pair.reading())
    finally:
        await pair.close()
    preemptions = target.report("soak").preemptions
    return Soaked(tuple(readings), dict(pair.outcomes), preemptions, pair.restarts, pair.drafted, left)


async def _draft_of(settings: WorkerSettings, target: TargetWorker, kills_draft: bool) -> DraftLife | None:
    if target.verify_address is None:
        return None
    assert settings.speculative is not None, "only a draft model has a verify stream"
    draft = DraftSettings(settings.model, settings.speculative, settings.engine, target.verify_address)
    if kills_draft:
        return KilledDraft(draft, target)
    return await asyncio.to_thread(InnerDraft, draft)


async def _turn(pair: Pair, turn: Sequence[Errand], clients: int) -> None:
    """All requests by a few clients; half way the draft dies in the middle of its work and another one joins.

    DraftUnavailable where none does.
    """
    half_way = asyncio.Event()
    waiting = enumerate(turn)

    async def client() -> None:
        for number, errand in waiting:
            if number == len(turn) // 2:
                half_way.set()
            await pair.run(errand)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client())
            await half_way.wait()
            await pair.restart_draft()
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed


async def _rest(pair: Pair, seconds: float) -> Held:
    """What is held once nothing is asked any more: nothing at all, or what is left after so long."""
    until = asyncio.get_running_loop().time() + seconds
    while not (left := held(pair.roots())).is_nothing:
        if asyncio.get_running_loop().time() > until:
            break
        await asyncio.sleep(0.05)  # what is waited for happens in other threads
    return left


def _trim() -> None:
    """Give back what was freed, so that memory is what is in use; only glibc has to be told to."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

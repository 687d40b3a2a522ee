"""Runs one block against the server: warm-up, measured requests under full load, cool-down."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from hashlib import blake2b
from itertools import count
from typing import Protocol

import numpy as np

from deploy.bench.asking import ApiClient, Reply
from deploy.evidence.degenerate import is_degenerate
from deploy.evidence.matrix import BlockPlan
from deploy.evidence.measured import MeasuredBlock, MeasuredRequest, ServerFigures
from fleet.clock import Clock
from fleet.errors import Unavailable
from fleet.traffic import Outcome

LAG_PROBE_SECONDS = 0.02


class ServerProbe(Protocol):
    """Looks at the server while a block runs."""

    async def watch(self, path: str | None, is_over: asyncio.Event) -> ServerFigures:
        """What the server says of a path from now until the event is set; None stands for no path of its own."""


class BlockDriver:
    """Runs blocks, one at a time."""

    def __init__(self, clients: Mapping[str | None, ApiClient], probe: ServerProbe, clock: Clock) -> None:
        """`clients`: by path."""
        self._clients = clients
        self._probe = probe
        self._clock = clock

    async def run(self, plan: BlockPlan) -> MeasuredBlock:
        """Raises `Unavailable` where the server cannot be reached at all: that measures nothing."""
        path = plan.block.arm.path
        run = _Run(plan, self._clients[path], self._clock)
        async with asyncio.TaskGroup() as group:
            figures = group.create_task(self._probe.watch(path, run.is_over))
            lags = group.create_task(self._watch_lag(run.is_over))
            await run.to_the_end()
        if all(reply.is_unreachable for reply in run.measured):
            raise Unavailable(f"the server no longer answers: {run.measured[0].answer.error}")
        return run.result(lags.result(), figures.result())

    async def _watch_lag(self, is_over: asyncio.Event) -> list[float]:
        """How late this event loop wakes up: an answer may be read so much later than it came."""
        lags = []
        while not is_over.is_set():
            due = self._clock.monotonic() + LAG_PROBE_SECONDS
            await asyncio.sleep(LAG_PROBE_SECONDS)
            lags.append(self._clock.monotonic() - due)
        return lags


class _Run:
    """One block under way."""

    def __init__(self, plan: BlockPlan, client: ApiClient, clock: Clock) -> None:
        self.is_over = asyncio.Event()
        self._plan = plan
        self._client = client
        self._clock = clock
        self._replies: dict[int, Reply] = {}
        self._left = plan.measured
        self._all_measured = asyncio.Event()
        self._started = clock.monotonic()
        self._ended = self._started

    @property
    def measured(self) -> list[Reply]:
        first = self._plan.warm_up
        return [self._replies[number] for number in range(first, first + self._plan.measured)]

    async def to_the_end(self) -> None:
        """Ask until every measured request has ended; what is still open then is cool-down and is cut off."""
        self._started = self._clock.monotonic()
        async with asyncio.TaskGroup() as group:
            load = group.create_task(self._arrive() if self._plan.due is not None else self._keep_open())
            await self._all_measured.wait()
            self._ended = self._clock.monotonic()
            load.cancel()
        self.is_over.set()

    async def _keep_open(self) -> None:
        """Closed loop: as soon as one request ends, the next begins."""
        numbers = count()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._plan.most_open or 1):
                group.create_task(self._work(numbers))

    async def _work(self, numbers: count[int]) -> None:
        for number in numbers:
            await self._ask(number, self._clock.monotonic())
            # A request that fails at once never waits: let others have a turn.
            await asyncio.sleep(0)

    async def _arrive(self) -> None:
        """Open loop: every request begins when it is due, unless as many are open as may be."""
        places = asyncio.Semaphore(self._plan.most_open or len(self._plan.questions))
        async with asyncio.TaskGroup() as group:
            for number, offset in enumerate(self._plan.due or ()):
                due = self._started + offset
                await asyncio.sleep(max(0.0, due - self._clock.monotonic()))
                group.create_task(self._ask_in_place(places, number, due))

    async def _ask_in_place(self, places: asyncio.Semaphore, number: int, due: float) -> None:
        async with places:
            await self._ask(number, due)

    async def _ask(self, number: int, due: float) -> None:
        """Questions after the last are the cool-down's over again."""
        plan = self._plan
        first_after = plan.warm_up + plan.measured
        if number >= len(plan.questions):
            index = first_after + (number - first_after) % (len(plan.questions) - first_after)
        else:
            index = number
        reply = self._replies[number] = Reply(due)
        await self._client.ask(plan.questions[index], reply)
        if plan.warm_up <= number < first_after:
            self._left -= 1
            if self._left == 0:
                self._all_measured.set()

    def result(self, lags: list[float], server: ServerFigures) -> MeasuredBlock:
        """The block's record."""
        plan = self._plan
        begin = self._replies[plan.warm_up].due
        own = [reply for reply in self._replies.values() if not reply.answer.fallbacks]
        arrivals = [(at, tokens) for reply in own for at, tokens in reply.answer.chunks]
        done = [reply.answer.watch.last_at for reply in own if reply.outcome is Outcome.DONE]
        return MeasuredBlock(
            condition=plan.block.condition.id,
            round=plan.block.round,
            arm=plan.block.arm.name,
            seconds=self._ended - self._started,
            window_seconds=self._ended - begin,
            window_tokens=sum(tokens for at, tokens in arrivals if begin < at <= self._ended),
            window_completed=sum(at is not None and begin < at <= self._ended for at in done),
            client_lag=float(np.quantile(lags, 0.95)) if lags else 0.0,
            server=server,
            requests=tuple(
                _record(index, plan.categories[plan.warm_up + index], reply)
                for index, reply in enumerate(self.measured)
            ),
        )


def _record(index: int, category: str, reply: Reply) -> MeasuredRequest:
    answer = reply.answer
    return MeasuredRequest(
        index=index,
        category=category,
        outcome=reply.outcome,
        send_delay=reply.sent - reply.due,
        chunks=tuple((round(at - reply.due, 6), tokens) for at, tokens in answer.chunks),
        prompt_tokens=answer.prompt_tokens,
        drafted=answer.drafted,
        accepted=answer.accepted,
        rounds_by_accepted=answer.rounds_by_accepted,
        queue_seconds=answer.queue_seconds,
        fallbacks=answer.fallbacks,
        answer_digest=blake2b(answer.text.encode(), digest_size=8).hexdigest(),
        is_degenerate=is_degenerate(answer.text),
    )

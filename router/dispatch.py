"""The life of a request: admit, choose its path, generate, go on elsewhere when a replica fails, note everything."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from fleet.clock import Clock, Deadline
from fleet.config import RouterConfig
from fleet.errors import DeadlineExceeded, FleetError, Overloaded, ReplicaLost
from fleet.generation import GenerationRequest, TokenChunk
from fleet.traffic import SamplingMode
from router.backend import Backend
from router.failover import Progress, next_attempt, outcome_of
from router.gate import Gate
from router.intake import Job
from router.ledger import Account, Ledger
from router.split import Assignment, AssignmentKeys, CurrentSplit, RequestFacts, choose_path
from router.trips import TripWire

_LOG = logging.getLogger(__name__)

TIMER_SLACK = 0.05
"""Share of the stall timeout by which it may be exceeded; renewing the timer for every chunk would cost 8 µs each."""

Arrival = tuple[int, TokenChunk]
"""A choice's index and what one engine step brought for it."""


@dataclass(frozen=True, slots=True)
class RouterIdentity:
    """Who this router is, and which paths there are."""

    router_id: str
    """Unique per start of a router, because its reports are numbered from 1."""
    paths: frozenset[str]
    stable: str
    """Serves everything until the controller has spoken."""
    pid: int = 0


@dataclass(slots=True)
class Serving:
    """One admitted request."""

    name: str
    job: Job
    account: Account
    deadline: Deadline
    arrivals: asyncio.Queue[Arrival | asyncio.Task[None]] = field(default_factory=asyncio.Queue)

    async def chunks(self) -> AsyncGenerator[list[Arrival], None]:
        """What arrives for all choices, until each has finished. Raises what a choice could not recover from.

        Everything that is there already comes at once: one step's chunk while the reader keeps up, several where
        it does not, so that a reader that fell behind is cheap to serve. Nothing waits for more.
        """
        running = self.job.choices
        while running:
            waiting = [await self.arrivals.get()]
            while not self.arrivals.empty():
                waiting.append(self.arrivals.get_nowait())
            if arrived := [item for item in waiting if isinstance(item, tuple)]:
                yield arrived
            for item in waiting:
                if isinstance(item, asyncio.Task):
                    item.result()
                    running -= 1


class Dispatcher:
    """Serves requests over all paths; owns what the router knows: split, ledger, queue."""

    def __init__(self, backend: Backend, config: RouterConfig, identity: RouterIdentity, clock: Clock) -> None:
        self.current = CurrentSplit(identity.stable)
        self.ledger = Ledger(identity.router_id, identity.pid)
        self.has_tripped = asyncio.Event()
        """Set with each hard trip: the controller must hear of it now."""
        self._backend = backend
        self._config = config
        self._identity = identity
        self._clock = clock
        self._gate = Gate(config, clock)
        self._keys = AssignmentKeys(config.assignment_keys)
        self._wire = TripWire()
        self._numbers = itertools.count(1)

    @property
    def is_ready(self) -> bool:
        """Whether stable has a replica, so that any request can be served."""
        return self._backend.replicas(self.current.split.stable) > 0

    @property
    def queued(self) -> int:
        return self._gate.queued

    @property
    def clock(self) -> Clock:
        return self._clock

    @asynccontextmanager
    async def serve(self, job: Job, facts: RequestFacts) -> AsyncIterator[Serving]:
        """Hold a slot for the request and generate while the context is open; leaving early cancels everything.

        Raises Overloaded when there is no slot, BadRequest when the path override is unknown.
        """
        accepted_at = self._clock.monotonic()
        deadline = Deadline(accepted_at + self._config.request_timeout_s)
        name = f"{self._identity.router_id}-{next(self._numbers)}"
        try:
            await self._enter(name, job, facts)
            assignment = self._choose(facts)
            account = self.ledger.open(name, assignment, accepted_at, job.choices)
            sampling = SamplingMode.GREEDY if facts.is_greedy else SamplingMode.SAMPLED
            account.admitted(self._clock.monotonic(), job.prompt_tokens, sampling)
            bounded = job.drafting_at_most(assignment.draft_length)
            async with self._generating(Serving(name, bounded, account, deadline)) as serving:
                yield serving
        finally:
            self._gate.leave(name)

    async def _enter(self, name: str, job: Job, facts: RequestFacts) -> None:
        try:
            await self._gate.enter(name, job.choices)
        except (Overloaded, asyncio.CancelledError) as error:
            outcome = outcome_of(error, is_finished=False, has_tokens=False)
            self.ledger.turned_away(self._choose(facts).path, outcome)
            raise

    def _choose(self, facts: RequestFacts) -> Assignment:
        split = self.current.split
        return choose_path(split, facts, self._keys, self._identity.paths, self._open_on(split.canary))

    def _open_on(self, canary: str | None) -> int:
        """Streams open on the canary in the whole fleet; counted only where the split asks for it."""
        if canary is None or self.current.split.eligible.cells is None:
            return 0
        return self.ledger.in_flight.get(canary, 0) + self.current.open_elsewhere(canary)

    @asynccontextmanager
    async def _generating(self, serving: Serving) -> AsyncIterator[Serving]:
        """Run all choices at once; close the account with how it ended."""
        streams = [asyncio.create_task(self._stream(serving, choice)) for choice in range(serving.job.choices)]
        for stream in streams:
            stream.add_done_callback(serving.arrivals.put_nowait)
        error: BaseException | None = None
        try:
            yield serving
        except BaseException as raised:
            error = raised
            raise
        finally:
            account = serving.account
            has_tokens = account.output_tokens > 0
            account.close(outcome_of(error, is_finished=account.is_finished, has_tokens=has_tokens))
            await _end(streams)

    async def _stream(self, serving: Serving, choice: int) -> None:
        """Generate one choice to its end, on as many replicas as it takes."""
        progress = Progress(serving.job.generation(choice, serving.name))
        path = serving.account.assignment.path
        for failures in itertools.count(1):
            request = progress.remaining(f"{serving.name}-{choice}-{failures}")
            try:
                await self._attempt(serving, choice, progress, path, request)
                return
            except FleetError as error:
                self._note_failure(path, error)
                going_on = next_attempt(
                    error,
                    failures,
                    serving=path,
                    stable=self.current.split.stable,
                    has_tokens=bool(progress.token_ids),
                )
                if going_on is None:
                    raise
            path = going_on.path
            serving.account.fell_back(path)
            await asyncio.sleep(min(going_on.pause_seconds, serving.deadline.remaining(self._clock)))

    async def _attempt(
        self, serving: Serving, choice: int, progress: Progress, path: str, request: GenerationRequest
    ) -> None:
        """Stream from one replica until the finish; raises the failure that ended it before."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + serving.deadline.remaining(self._clock)
        stall_seconds = self._config.stall_timeout_s
        slack, renew_at = stall_seconds * TIMER_SLACK, 0.0
        note, arrivals, now = serving.account.note, serving.arrivals, self._clock.monotonic
        try:
            async with (
                asyncio.timeout_at(min(ends_at, loop.time() + stall_seconds)) as guard,
                aclosing(self._backend.generate(path, request)) as chunks,
            ):
                async for chunk in chunks:
                    progress.add(chunk)
                    note(choice, now(), chunk)
                    arrivals.put_nowait((choice, chunk))
                    if chunk.finish is not None:
                        return
                    if (at := loop.time()) >= renew_at:
                        renew_at = at + slack
                        guard.reschedule(min(ends_at, renew_at + stall_seconds))
        except TimeoutError:
            if loop.time() >= ends_at:
                raise DeadlineExceeded(f"not finished within {self._config.request_timeout_s:g} s") from None
            raise ReplicaLost(f"no token for {stall_seconds:g} s on path '{path}'") from None
        raise ReplicaLost(f"a stream of path '{path}' ended without a finish reason")

    def _note_failure(self, path: str, error: FleetError) -> None:
        _LOG.warning("stream failed on %s: %s: %s", path, type(error).__name__, error)
        trip = self._wire.check(path, error, self._clock.monotonic())
        if trip is not None and self.current.trip(path):
            _LOG.error("hard trip %s: no new requests to %s", trip.kind, path)
            self.ledger.tripped(trip)
            self.has_tripped.set()


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel what still runs and wait until it has let go of its replica."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

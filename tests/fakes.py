"""Fakes of the seams: replicas that generate by rule, a controller that records, a clock that is turned by hand."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from fleet.errors import FleetError, Unavailable
from fleet.generation import FinishReason, GenerationRequest, Round, TokenChunk, TokenLogprob
from fleet.traffic import ReportReply, RouterReport, Split


@dataclass
class ManualClock:
    """Time that stands still until a test turns it."""

    now: float = 1000.0
    wall_offset: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now + self.wall_offset

    def advance(self, seconds: float) -> None:
        self.now += seconds


def fake_token(seed: int, choice: int, position: int) -> int:
    """The token at an output position: as with the real sampler, no path or replica has a say in it."""
    digest = hashlib.blake2b(f"{seed}:{choice}:{position}".encode(), digest_size=2).digest()
    return 3 + int.from_bytes(digest, "big") % 256


def fake_text(token_id: int) -> str:
    return f"<{token_id}>"


def expected_text(seed: int, choice: int, tokens: int) -> str:
    """What a client must have read after so many tokens, whatever happened on the way."""
    return "".join(fake_text(fake_token(seed, choice, position)) for position in range(tokens))


@dataclass
class Fault:
    """A stream of a path fails, or falls silent for good, after so many more tokens."""

    after_tokens: int
    error: FleetError | None = None
    """None hangs."""
    times: int = 1_000_000


@dataclass
class FakeBackend:
    """Replicas that emit `fake_token`s, `burst` a step; every path may be given a fault."""

    ready: dict[str, int] = field(default_factory=lambda: {"baseline": 1, "speculative": 1})
    bursts: dict[str, int] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    step_seconds: float = 0.0
    started: list[tuple[str, GenerationRequest]] = field(default_factory=list)
    open: set[str] = field(default_factory=set)

    def replicas(self, path: str) -> int:
        return self.ready.get(path, 0)

    def paths_used(self) -> list[str]:
        return [path for path, _ in self.started]

    async def generate(self, path: str, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        self.started.append((path, request))
        if self.replicas(path) == 0:
            raise Unavailable(f"no replica of {path} is ready")
        self.open.add(request.request_id)
        try:
            async with aclosing(self._chunks(path, request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.open.discard(request.request_id)

    async def _chunks(self, path: str, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        burst = self.bursts.get(path, 1)
        start = len(request.resume.token_ids) if request.resume else 0
        position, end = start, request.sampling.max_tokens
        owed = self._owed(request)
        fault = self.faults.get(path)
        breaks_at = end
        if fault and fault.times > 0:
            fault.times -= 1
            breaks_at = min(end, start + fault.after_tokens)
        while position < breaks_at:
            await asyncio.sleep(self.step_seconds)
            size = min(burst, breaks_at - position)
            yield self._chunk(request, range(position, position + size), owed, is_first=position == start)
            owed = ""
            position += size
        if position < end:
            await self._fail(fault)

    async def _fail(self, fault: Fault | None) -> None:
        if fault and fault.error:
            raise fault.error
        await asyncio.Event().wait()

    def _owed(self, request: GenerationRequest) -> str:
        if request.resume is None:
            return ""
        return "".join(map(fake_text, request.resume.token_ids))[request.resume.text_length :]

    def _chunk(self, request: GenerationRequest, positions: range, owed: str, *, is_first: bool) -> TokenChunk:
        sampling = request.sampling
        tokens = tuple(fake_token(sampling.seed, request.choice_index, position) for position in positions)
        is_last = positions.stop == sampling.max_tokens
        prompt = request.prompt_token_ids
        return TokenChunk(
            request_id=request.request_id,
            token_ids=tokens,
            text=owed + "".join(map(fake_text, tokens)),
            logprobs=fake_logprobs(tokens, sampling.logprobs),
            finish=FinishReason.LENGTH if is_last else None,
            round=Round(drafted=4, accepted=len(tokens) - 1) if len(tokens) > 1 else None,
            queue_seconds=0.0 if is_first else None,
            prompt_logprobs=(None, *fake_logprobs(prompt[1:], sampling.logprobs or 0))
            if sampling.prompt_logprobs and is_first
            else (),
        )


def fake_logprobs(token_ids: Sequence[int], top: int | None) -> tuple[TokenLogprob, ...]:
    if top is None:
        return ()
    return tuple(
        TokenLogprob(token, -0.5, tuple((token + offset, -0.5 - offset) for offset in range(top)))
        for token in token_ids
    )


@dataclass
class FakeControl:
    """A controller that acknowledges what it sees, can be away, and hands out the split it is given."""

    split: Split = field(default_factory=lambda: Split(version=1, stable="baseline"))
    is_away: bool = False
    reports: list[RouterReport] = field(default_factory=list)
    commands: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def _check(self) -> None:
        if self.is_away:
            raise Unavailable("the controller is away")

    async def report(self, report: RouterReport) -> ReportReply:
        self._check()
        self.reports.append(report)
        return ReportReply(split=self.split, acknowledged=report.sequence)

    async def command(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        self._check()
        self.commands.append((name, arguments))
        return {"command": name, "arguments": dict(arguments)}

    async def status(self) -> Mapping[str, Any]:
        self._check()
        return {"state": "idle"}

    async def metrics(self) -> bytes:
        self._check()
        return b"# HELP fleet_up 1 while the controller answers\nfleet_up 1\n"

"""A fleet and its time, simulated: an event loop that jumps from event to event, and paths with a step-time model."""

from __future__ import annotations

import asyncio
import json
import random
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

Result = TypeVar("Result")


class VirtualClock:
    """Seconds that pass only when everybody waits, or when somebody is made to be slow."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everybody waits for somebody else")
        self._clock.advance(max(0.0, timeout))
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(_JumpingSelector(clock))
        self._virtual = clock

    def time(self) -> float:
        return self._virtual.now


def run_virtually(clock: VirtualClock, work: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=lambda: _VirtualLoop(clock)) as runner:
        return runner.run(work)


@dataclass
class SimulatedPath:
    """One path: a step takes `base + slope × sequences` seconds and brings every running sequence its tokens."""

    base: float = 0.020
    slope: float = 0.001
    prefill: float = 0.0001
    """Seconds per prompt token, added to the step that a sequence joins."""
    most: int = 8
    noise: float = 0.04
    draft: int = 0
    acceptance: float = 0.0
    factor: Callable[[float, int], float] = lambda temperature, running: 1.0
    """(temperature of the first sequence, sequences running) -> factor on the step time."""
    by_prompt: Callable[[float, int], float] = lambda temperature, prompt_tokens: 1.0
    """(temperature, tokens of the prompt) of the first sequence -> a further factor on the step time."""
    stall: tuple[float, float] | None = None
    """(when, how long): the one step that begins then takes so much longer."""
    loses: Callable[[int], bool] = lambda seed: False
    """Is the request with this seed lost, and finished by another path? It takes as long, without an error."""


@dataclass
class _Sequence:
    seed: int
    temperature: float
    prompt_tokens: int
    left: int
    chunks: asyncio.Queue[tuple[int, bool]] = field(default_factory=asyncio.Queue)
    rounds: list[int] = field(default_factory=list)
    is_gone: bool = False


class _Engine:
    """Continuous batching over a step-time model."""

    def __init__(self, path: SimulatedPath, clock: VirtualClock, seed: int) -> None:
        self._path = path
        self._clock = clock
        self._random = random.Random(seed)
        self._waiting: list[_Sequence] = []
        self._running: list[_Sequence] = []
        self._task: asyncio.Task[None] | None = None

    def submit(self, sequence: _Sequence) -> None:
        self._waiting.append(sequence)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        while True:
            self._running = [item for item in self._running if item.left and not item.is_gone]
            self._waiting = [item for item in self._waiting if not item.is_gone]
            joined = self._waiting[: self._path.most - len(self._running)]
            del self._waiting[: len(joined)]
            self._running += joined
            if not self._running:
                return
            await asyncio.sleep(self._step_seconds(joined))
            for sequence in self._running:
                self._emit(sequence)

    def _step_seconds(self, joined: list[_Sequence]) -> float:
        path, running = self._path, self._running
        seconds = (path.base + path.slope * len(running)) * path.factor(running[0].temperature, len(running))
        seconds *= path.by_prompt(running[0].temperature, running[0].prompt_tokens)
        seconds += path.prefill * sum(item.prompt_tokens for item in joined)
        seconds *= self._random.lognormvariate(0.0, path.noise)
        if path.stall is not None and self._clock.now >= path.stall[0]:
            seconds, path.stall = seconds + path.stall[1], None
        return seconds

    def _emit(self, sequence: _Sequence) -> None:
        accepted = 0
        while accepted < self._path.draft and self._random.random() < self._path.acceptance:
            accepted += 1
        tokens = min(accepted + 1, sequence.left)
        sequence.left -= tokens
        if self._path.draft:
            sequence.rounds.append(tokens - 1)
        sequence.chunks.put_nowait((tokens, sequence.left == 0))


class SimulatedFleet(httpx.AsyncBaseTransport):
    """Answers chat completions like the router; answers depend on the seed alone, not on the path."""

    def __init__(self, clock: VirtualClock, seed: int = 0, **paths: SimulatedPath) -> None:
        self._paths = paths
        self._engines = {
            name: _Engine(path, clock, seed * 1000 + number) for number, (name, path) in enumerate(paths.items())
        }
        self._clock = clock
        self.client_cost = 0.0
        """Seconds for which the client's process does nothing else whenever it reads an event."""
        self.route: Callable[[dict[str, Any]], str] = lambda body: next(iter(paths))
        """The path of a request that names none."""
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "simulated"}]})
        if request.url.path != "/v1/chat/completions":
            return httpx.Response(404, json={})
        body = json.loads(request.content)
        name = request.headers.get("x-fleet-path") or self.route(body)
        self.asked.append((name, body))
        if name not in self._engines:
            return httpx.Response(404, json={"error": {"message": f"no path {name}"}})
        words = sum(len(message["content"].split()) for message in body["messages"])
        sequence = _Sequence(body["seed"], body["temperature"], words, body["max_tokens"])
        self._engines[name].submit(sequence)
        return httpx.Response(200, stream=_Events(self, name, sequence, self._paths[name]))

    def read(self) -> None:
        self._clock.advance(self.client_cost)


class _Events(httpx.AsyncByteStream):
    def __init__(self, fleet: SimulatedFleet, name: str, sequence: _Sequence, path: SimulatedPath) -> None:
        self._fleet = fleet
        self._name = name
        self._sequence = sequence
        self._path = path

    async def __aiter__(self) -> AsyncIterator[bytes]:
        sequence, total, is_last = self._sequence, 0, False
        words = random.Random(sequence.seed)
        while not is_last:
            tokens, is_last = await sequence.chunks.get()
            self._fleet.read()
            total += tokens
            text = "".join(f"{words.randrange(1000)} " for _ in range(tokens))
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": "length" if is_last else None}
            yield _event(choices=[choice], usage=self._usage(total))
        yield _event(choices=[], usage=self._usage(total), metrics=self._metrics()) + b"data: [DONE]\n\n"

    async def aclose(self) -> None:
        self._sequence.is_gone = True

    def _usage(self, total: int) -> dict[str, int]:
        return {"prompt_tokens": self._sequence.prompt_tokens, "completion_tokens": total}

    def _metrics(self) -> dict[str, Any]:
        rounds, draft = self._sequence.rounds, self._path.draft
        speculative = rounds and {
            "num_draft_tokens": draft * len(rounds),
            "num_accepted_draft_tokens": sum(rounds),
            "acceptance_histogram": [rounds.count(accepted) for accepted in range(draft + 1)],
        }
        return {
            "queue_time_ms": 0.0,
            "speculative_decoding": speculative,
            "fleet": {"path": self._name, "fallbacks": int(self._path.loses(self._sequence.seed))},
        }


def _event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"

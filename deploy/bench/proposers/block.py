"""One block: so many requests, always `concurrency` of them under way, on one arm's engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from deploy.bench.prompts import Prompt
from deploy.bench.proposers.arms import Served
from deploy.bench.proposers.plan import Cell, Place
from deploy.bench.proposers.probe import Notes
from fleet.errors import ConfigError
from fleet.generation import GenerationRequest, SamplingParams, StepOutput, StreamFailed
from fleet.tokenizer import Tokenizer

OWNER = "bench"


@dataclass(frozen=True, slots=True)
class Measured:
    """A block's outcome: one line of the run's file."""

    round: int
    cell: Cell
    arm: str
    tokens: int
    """Committed while `concurrency` requests were under way, from when each of the first ones had its first token."""
    seconds: float
    notes: Notes
    is_last: bool = False
    """As in its `Place`."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def requests_of(
    prompts: Sequence[Prompt], place: Place, tokenizer: Tokenizer, max_tokens: int
) -> list[GenerationRequest]:
    """The first turn of each prompt, as a chat; the same seeds on every arm of a round."""
    requests = []
    for index, prompt in enumerate(prompts):
        ids = tuple(tokenizer.render_chat([{"role": "user", "content": prompt.turns[0]}]))
        seed = place.round * len(prompts) + index
        sampling = SamplingParams(seed, max_tokens, temperature=place.cell.temperature)
        requests.append(GenerationRequest(f"{place.round}-{index}", ids, sampling))
    return requests


def run_block(served: Served, place: Place, requests: Sequence[GenerationRequest]) -> Measured:
    """Ask until fewer than `concurrency` requests are left under way; what is still open then is dropped.

    The first prompts' time does not count: beside answers as short as a benchmark's it would count for too much. Raises
    ConfigError where the engine refuses a request.
    """
    engine, cell = served.engine, place.cell
    waiting, under_way, tokens = deque(requests), 0, 0
    answered: set[str] = set()
    notes = served.take_notes()
    began = None
    while True:
        while under_way < cell.concurrency and waiting:
            engine.submit(waiting.popleft(), OWNER)
            under_way += 1
        if under_way < cell.concurrency:
            break
        for output in engine.step().get(OWNER, []):
            committed, has_ended = _committed(output)
            tokens += committed
            under_way -= has_ended
            answered.add(output.request_id)
        if began is None and len(answered) >= cell.concurrency:
            began, tokens = time.perf_counter(), 0
    seconds = time.perf_counter() - began if began is not None else 0.0
    engine.cancel_owner(OWNER)
    return Measured(place.round, cell, place.arm.name, tokens, seconds, notes, place.is_last)


def _committed(output: StepOutput) -> tuple[int, bool]:
    """Tokens, and whether the request has ended."""
    if isinstance(output, StreamFailed):
        raise ConfigError(f"the engine cannot answer a prompt: {output.message}")
    return len(output.token_ids), output.finish is not None

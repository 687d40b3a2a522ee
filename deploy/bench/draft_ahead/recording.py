"""What do target and draft say, and how long does each of their passes take? Recorded once, for the simulation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from deploy.bench.draft_ahead.simulation import Trace
from deploy.bench.proposers.arms import Served
from deploy.bench.proposers.block import OWNER
from fleet.errors import ConfigError
from fleet.generation import GenerationRequest, SamplingParams, TokenChunk
from replicas.draft_engine import DraftEngine
from replicas.speculation.drafting import DraftWork

GREEDY = SamplingParams(seed=0, max_tokens=1, temperature=0.0)


@dataclass(frozen=True, slots=True)
class Recording:
    """One answer, and the median seconds of the draft's passes over one token of it."""

    trace: Trace
    draft_seconds: float


def record(served: Served, draft: DraftEngine, request: GenerationRequest) -> Recording:
    """Let the target answer greedily, then ask the draft behind every token of it. Raises ConfigError."""
    tokens = (*request.prompt_token_ids, *_answer(served, request))
    first, second, seconds = _choices(draft, tokens)
    trace = Trace(len(request.prompt_token_ids), tokens, first, second)
    return Recording(trace, statistics.median(seconds))


def _answer(served: Served, request: GenerationRequest) -> list[int]:
    served.engine.submit(request, OWNER)
    tokens: list[int] = []
    while served.engine.has_work:
        for output in served.engine.step().get(OWNER, []):
            if not isinstance(output, TokenChunk):
                raise ConfigError(f"the engine cannot answer a prompt: {output.message}")
            tokens += output.token_ids
    return tokens


def _choices(draft: DraftEngine, tokens: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], list[float]]:
    """First and second choice behind every token, and the seconds of each pass."""
    first, second, seconds = [], [], []
    for position, token in enumerate(tokens):
        work = DraftWork(
            sequence_id=0,
            position=position,
            token_ids=(token,),
            samples=True,
            wants_runner_up=True,
            names_distribution=False,
            sampling=GREEDY,
            choice_index=0,
            prompt_token_ids=tokens[: position + 1],
            output_token_ids=(),
        )
        began = time.perf_counter()
        run = draft.run([work])
        seconds.append(time.perf_counter() - began)
        drafted = run.done[0][1] if run.done else None
        if drafted is None or drafted.runner_up is None:
            raise ConfigError("the draft has no room for the whole answer: lower --tokens")
        first.append(drafted.token_id)
        second.append(drafted.runner_up)
    draft.release_all()
    return tuple(first), tuple(second), seconds

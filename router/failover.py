"""A stream failed: what has the client already, where does it go on, and how did the request end?"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from fleet.errors import BadRequest, DeadlineExceeded, FleetError, Overloaded, Unavailable
from fleet.generation import GenerationRequest, Resume, TokenChunk
from fleet.traffic import Outcome

MAX_FAILURES = 6
"""A stream that fails more often is given up; with the pauses below that takes some seconds."""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Continuation:
    """Where a failed stream goes on, and how long it waits before."""

    path: str
    pause_seconds: float


def next_attempt(
    error: FleetError, failures: int, *, serving: str, stable: str, has_tokens: bool
) -> Continuation | None:
    """Where to go on after the n-th failure (n ≥ 1) of a stream, or None to give it up.

    What failed elsewhere goes on at once on stable. On stable another replica is tried, with growing pauses. A
    client that has read nothing yet is told of overload instead, so that it can back off.
    """
    if isinstance(error, (BadRequest, DeadlineExceeded)) or failures > MAX_FAILURES:
        return None
    if serving != stable:
        return Continuation(stable, 0.0)
    if isinstance(error, (Overloaded, Unavailable)) and not has_tokens:
        return None
    pause = 0.0 if failures == 1 else FIRST_PAUSE_SECONDS * 2.0 ** (failures - 2)
    return Continuation(stable, min(pause, LONGEST_PAUSE_SECONDS))


@dataclass(slots=True)
class Progress:
    """What of one choice was committed and delivered: enough to go on anywhere as if nothing had happened."""

    request: GenerationRequest
    token_ids: list[int] = field(default_factory=list)
    text_length: int = 0

    def add(self, chunk: TokenChunk) -> None:
        self.token_ids.extend(chunk.token_ids)
        self.text_length += len(chunk.text)

    def remaining(self, engine_id: str) -> GenerationRequest:
        """The request for what is still to come, under a new id."""
        if not self.token_ids:
            return replace(self.request, request_id=engine_id)
        # The prompt's log-probabilities came with the first tokens.
        sampling = replace(self.request.sampling, prompt_logprobs=False)
        resume = Resume(tuple(self.token_ids), self.text_length)
        return replace(self.request, request_id=engine_id, sampling=sampling, resume=resume)


def outcome_of(error: BaseException | None, *, is_finished: bool, has_tokens: bool) -> Outcome:
    """How a request ended. HTTP 200 is not an outcome.

    A refusal by the engine (its queue is full, the request is impossible) is shed; a stream that ended without a
    finish reason is truncated if the client had read something, else failed.
    """
    if is_finished:
        return Outcome.DONE
    match error:
        case None | asyncio.CancelledError() | GeneratorExit():
            return Outcome.CANCELLED
        case DeadlineExceeded():
            return Outcome.TIMED_OUT
        case Overloaded() | BadRequest() if not has_tokens:
            return Outcome.SHED
        case _:
            return Outcome.TRUNCATED if has_tokens else Outcome.FAILED

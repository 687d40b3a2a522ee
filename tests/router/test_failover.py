"""Where a failed stream goes on, and how a request ended: the rules alone."""

from __future__ import annotations

import asyncio

import pytest

from fleet.errors import BadRequest, DeadlineExceeded, FleetError, Overloaded, ReplicaLost, Unavailable
from fleet.generation import GenerationRequest, Resume, SamplingParams, TokenChunk
from fleet.traffic import Outcome
from router.failover import MAX_FAILURES, Continuation, Progress, next_attempt, outcome_of


def test_the_first_failure_on_stable_is_retried_at_once_and_later_ones_with_growing_pauses() -> None:
    pauses = []
    for failures in range(1, MAX_FAILURES + 2):
        going_on = next_attempt(ReplicaLost("died"), failures, serving="baseline", stable="baseline", has_tokens=True)
        pauses.append(going_on.pause_seconds if going_on else None)
    assert pauses == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, None]


@pytest.mark.parametrize(
    ("error", "serving", "has_tokens", "expected"),
    [
        (BadRequest("no"), "speculative", False, None),
        (DeadlineExceeded("late"), "speculative", True, None),
        (Overloaded("full"), "speculative", False, Continuation("baseline", 0.0)),
        (Overloaded("full"), "baseline", False, None),
        (Overloaded("full"), "baseline", True, Continuation("baseline", 0.0)),
        (Unavailable("none"), "baseline", False, None),
    ],
)
def test_who_may_go_on_where(error: FleetError, serving: str, has_tokens: bool, expected: Continuation | None) -> None:
    assert next_attempt(error, 1, serving=serving, stable="baseline", has_tokens=has_tokens) == expected


@pytest.mark.parametrize(
    ("error", "is_finished", "has_tokens", "outcome"),
    [
        (None, True, True, Outcome.DONE),
        (asyncio.CancelledError(), True, True, Outcome.DONE),
        (None, False, True, Outcome.CANCELLED),
        (asyncio.CancelledError(), False, False, Outcome.CANCELLED),
        (DeadlineExceeded("late"), False, True, Outcome.TIMED_OUT),
        (Overloaded("full"), False, False, Outcome.SHED),
        (BadRequest("impossible"), False, False, Outcome.SHED),
        (ReplicaLost("died"), False, False, Outcome.FAILED),
        (ReplicaLost("died"), False, True, Outcome.TRUNCATED),
        (ZeroDivisionError(), False, False, Outcome.FAILED),
    ],
)
def test_the_outcome_follows_from_how_it_ended_and_what_was_delivered(
    error: BaseException | None, is_finished: bool, has_tokens: bool, outcome: Outcome
) -> None:
    assert outcome_of(error, is_finished=is_finished, has_tokens=has_tokens) is outcome


def test_what_is_left_of_a_stream_carries_its_tokens_and_how_much_text_was_read() -> None:
    first = GenerationRequest("r-1", (1, 2), SamplingParams(seed=7, max_tokens=9, logprobs=1, prompt_logprobs=True), 3)
    progress = Progress(first)
    assert progress.remaining("r-2").resume is None
    assert progress.remaining("r-2").sampling.prompt_logprobs
    progress.add(TokenChunk("r-1", (10, 11), "ab"))
    progress.add(TokenChunk("r-1", (12,), ""))
    left = progress.remaining("r-3")
    assert (left.request_id, left.resume) == ("r-3", Resume((10, 11, 12), 2))
    assert (left.sampling.seed, left.choice_index, left.prompt_token_ids) == (7, 3, (1, 2))
    assert not left.sampling.prompt_logprobs, "they were delivered with the first tokens"

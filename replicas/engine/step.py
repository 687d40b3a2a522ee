"""One plan through model and sampler: what each sequence's rows come to."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fleet.generation import TokenLogprob
from replicas.engine.model import Model, Segment, allocation_failures
from replicas.engine.sampling import Draw, Sample, Sampler, UnusableLogits
from replicas.engine.scheduler import Plan, Work


@dataclass(frozen=True, slots=True)
class WorkResult:
    """What one sequence's share of a step came to."""

    samples: tuple[Sample | None, ...] = ()
    """The target's own token after the last committed one and after each drafted one; None where the logits allow
    none. Empty for a chunk in the middle of a prompt."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Of the prompt tokens that follow the chunk's tokens, when asked for."""


class StepFault(Protocol):
    """A fault that is caused on purpose, at the place where real ones arise."""

    def strike(self, works: Items[Work]) -> None:
        """Delay the step, or ask the allocator for too much."""


class StepRunner:
    """Model and sampler together. Raises OutOfMemory; a row without a usable token is a value."""

    def __init__(self, model: Model, sampler: Sampler, fault: StepFault | None = None) -> None:
        self._model = model
        self._sampler = sampler
        self._fault = fault

    @torch.inference_mode()
    def run(self, plan: Plan) -> list[WorkResult]:
        """Carry out the moves, then one forward pass over all works; one result per work."""
        with allocation_failures():
            if self._fault is not None:
                self._fault.strike(plan.works)
            for move in plan.moves:
                self._model.move(move.source, move.target, move.length)
            logits = self._model.forward([_segment(work) for work in plan.works]).logits
            rows = torch.split(logits, [_logit_rows(work) for work in plan.works])
            samples = self._sample_all(plan.works, rows)
            return [
                WorkResult(found, self._prompt_logprobs(work, own))
                for work, own, found in zip(plan.works, rows, samples, strict=True)
            ]

    def _sample_all(self, works: Items[Work], rows: Items[Tensor]) -> list[tuple[Sample | None, ...]]:
        """All rows of the step are sampled together; which ones belong together changes no token."""
        draws = [_draws(work) for work in works]
        asked = [own[len(own) - len(wanted) :] for own, wanted in zip(rows, draws, strict=True)]
        found = iter(self._sample(torch.cat(asked), [draw for wanted in draws for draw in wanted]))
        return [tuple(next(found) for _ in wanted) for wanted in draws]

    def _sample(self, logits: Tensor, draws: Items[Draw]) -> list[Sample | None]:
        if not draws:
            return []
        try:
            return list(self._sampler.sample(logits, draws))
        except UnusableLogits as error:
            usable = [row for row in range(len(draws)) if row not in error.rows]
        found: list[Sample | None] = [None] * len(draws)
        for row, sample in zip(usable, self._sample(logits[usable], [draws[row] for row in usable]), strict=True):
            found[row] = sample
        return found

    def _prompt_logprobs(self, work: Work, rows: Tensor) -> tuple[TokenLogprob, ...]:
        sequence = work.sequence
        if not sequence.wants_prompt_logprobs:
            return ()
        first = sequence.cached + 1
        following = sequence.request.prompt_token_ids[first : first + work.new_tokens]
        top = sequence.request.sampling.logprobs or 0
        return tuple(self._sampler.logprobs(rows[: len(following)], following, top)) if following else ()


def _segment(work: Work) -> Segment:
    sequence = work.sequence
    assert sequence.extent is not None
    new = sequence.token_ids[sequence.cached : sequence.cached + work.new_tokens]
    return Segment(sequence.extent.start, sequence.cached, (*new, *work.drafted), _logit_rows(work))


def _logit_rows(work: Work) -> int:
    if work.sequence.wants_prompt_logprobs:
        return work.new_tokens
    return 1 + len(work.drafted) if work.samples else 0


def _draws(work: Work) -> list[Draw]:
    """One draw per row to be sampled; each sees the drafted tokens before it as if they were output."""
    sequence = work.sequence
    if not work.samples or sequence.remaining == 0:
        return []
    request = sequence.request
    output = sequence.token_ids[sequence.prompt_length :]
    return [
        Draw(request.sampling, request.choice_index, request.prompt_token_ids, [*output, *work.drafted[:row]])
        for row in range(1 + len(work.drafted))
    ]

"""One plan through model and sampler: what each sequence's rows come to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from fleet.clock import Clock
from fleet.generation import TokenLogprob
from replicas.engine.block import Block, LazySamples, committed_block
from replicas.engine.drawn_rows import RowRange, joined, on_host
from replicas.engine.judging import judged_block
from replicas.engine.model import Model, allocation_failures
from replicas.engine.packing import Segment
from replicas.engine.sampling import Draw, Sample, Sampler, Unusable, UnusableLogits
from replicas.engine.scheduler import Plan, Work
from replicas.speculation.tree import ROOT


@dataclass(frozen=True, slots=True)
class WorkResult:
    """What one sequence's share of a step came to."""

    block: Block
    """What is committed; empty for a chunk in the middle of a prompt."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Of the prompt tokens that follow the chunk's tokens, when asked for."""
    features: Tensor | None = None
    """The tapped states of the chunk's tokens and the accepted ones, [n, width]; None where nothing is tapped."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step came to."""

    works: list[WorkResult]
    """In the order of the plan."""
    forwarded_at: float | None
    """When the forward pass had ended and sampling and accepting began, by the step's clock; None on an accelerator,
    which is still at work when the call returns, and is not waited for."""
    was_recorded: bool = False
    """As in `Forward`."""


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
    def run(self, plan: Plan, clock: Clock) -> StepResult:
        """Carry out the moves, one forward pass over all works, and accept.

        Afterwards the cache holds exactly the accepted tokens behind those that were committed before.
        """
        with allocation_failures():
            if self._fault is not None:
                self._fault.strike(plan.works)
            for move in plan.moves:
                self._model.move(move.source, move.target, move.length)
            forward = self._model.forward([_segment(work) for work in plan.works])
            forwarded_at = clock.monotonic() if forward.logits.device.type == "cpu" else None
            rows = torch.split(forward.logits, [_logit_rows(work) for work in plan.works])
            blocks = self._blocks(plan.works, _drawn_rows(plan.works, forward.logits))
            for work, block in zip(plan.works, blocks, strict=True):
                self._compact(work, block)
            works = [
                WorkResult(block, self._prompt_logprobs(work, own), features)
                for work, block, own, features in zip(
                    plan.works, blocks, rows, _features(forward.features, plan.works, blocks), strict=True
                )
            ]
            return StepResult(works, forwarded_at, forward.was_recorded)

    def _blocks(self, works: Items[Work], rows: Items[RowRange]) -> list[Block]:
        """A draft that names its distributions is judged by the rejection rule, all else by the coupled one.

        `rows` are those that each work's tokens are drawn from.
        """
        blocks: dict[int, Block] = {}
        together: dict[str, list[int]] = defaultdict(list)
        for index, (work, own) in enumerate(zip(works, rows, strict=True)):
            if work.drafted.distributions:
                blocks[index] = judged_block(self._sampler, work.drafted, own.rows, _draws(work))
            elif work.drafted and not work.sequence.request.sampling.is_greedy:
                blocks[index] = committed_block(work.drafted, self._lazy_samples(work, own.rows))
            else:
                together[own.source.device.type].append(index)
        for indexes in together.values():
            samples = self._sample_all([works[index] for index in indexes], [rows[index] for index in indexes])
            for index, found in zip(indexes, samples, strict=True):
                blocks[index] = committed_block(works[index].drafted, found)
        return [blocks[index] for index in range(len(works))]

    def _lazy_samples(self, work: Work, rows: Tensor) -> LazySamples:
        """What is drawn costs by the row, so rows behind a disagreement are left alone."""
        draws = _draws(work)
        return LazySamples(len(draws), lambda row: self._sample(rows[row : row + 1], draws[row : row + 1])[0])

    def _compact(self, work: Work, block: Block) -> None:
        """Close the gaps that rejected nodes of a tree leave before accepted ones."""
        sequence = work.sequence
        if block.path != tuple(range(len(block.path))):
            assert sequence.extent is not None
            self._model.keep(sequence.extent.start + len(sequence.token_ids), block.path)

    def _sample_all(self, works: Items[Work], rows: Items[RowRange]) -> list[tuple[Sample | Unusable, ...]]:
        """All rows of these works are sampled together; which ones belong together changes no token."""
        draws = [_draws(work) for work in works]
        flat = [draw for wanted in draws for draw in wanted]
        found = iter(self._sample(joined(rows), flat) if flat else ())
        return [tuple(next(found) for _ in wanted) for wanted in draws]

    def _sample(self, logits: Tensor, draws: Items[Draw]) -> list[Sample | Unusable]:
        if not draws:
            return []
        try:
            return list(self._sampler.sample(logits, draws))
        except UnusableLogits as error:
            reasons = error.reasons
        usable = [row for row in range(len(draws)) if row not in reasons]
        sampled = self._sample(logits[usable], [draws[row] for row in usable])
        found = reasons | dict(zip(usable, sampled, strict=True))
        return [found[row] for row in range(len(draws))]

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
    drafted = work.drafted
    token_ids = (*new, *drafted.token_ids)
    return Segment(sequence.extent.start, sequence.cached, token_ids, _logit_rows(work), drafted.parents)


def _drawn_rows(works: Items[Work], logits: Tensor) -> list[RowRange]:
    """Of each work the rows that `_draws` is about, its last ones; on the host where a draw or a judge reads them."""
    ends = accumulate(_logit_rows(work) for work in works)
    ranges = [RowRange(logits, end - _draw_count(work), end) for work, end in zip(works, ends, strict=True)]
    is_read = [bool(work.drafted.distributions) or not work.sequence.request.sampling.is_greedy for work in works]
    return on_host(ranges, is_read)


def _logit_rows(work: Work) -> int:
    if work.sequence.wants_prompt_logprobs:
        return work.new_tokens
    return 1 + len(work.drafted) if work.samples else 0


def _draw_count(work: Work) -> int:
    """Rows to be sampled: after the committed tokens, and after each drafted one."""
    return 1 + len(work.drafted) if work.samples and work.sequence.remaining > 0 else 0


def _draws(work: Work) -> list[Draw]:
    """One draw per row to be sampled; each sees its own branch of the draft as if it were output."""
    if _draw_count(work) == 0:
        return []
    sequence = work.sequence
    request = sequence.request
    output = sequence.token_ids[sequence.prompt_length :]
    return [
        Draw(request.sampling, request.choice_index, request.prompt_token_ids, [*output, *work.drafted.branch(node)])
        for node in range(ROOT, len(work.drafted))
    ]


def _features(features: Tensor | None, works: Items[Work], blocks: Items[Block]) -> list[Tensor | None]:
    """Of each work's rows those that stay: its new tokens and the accepted branch."""
    if features is None:
        return [None] * len(works)
    parts = torch.split(features, [work.new_tokens + len(work.drafted) for work in works])
    kept: list[Tensor | None] = []
    for work, block, part in zip(works, blocks, parts, strict=True):
        rows = [*range(work.new_tokens), *(work.new_tokens + node for node in block.path)]
        kept.append(part[: len(rows)] if rows[-1] == len(rows) - 1 else part[rows])
    return kept

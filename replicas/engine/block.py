"""What one step commits for one sequence, from the rows that were sampled."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from fleet.generation import TokenLogprob
from replicas.engine.sampling import Sample, Unusable
from replicas.speculation.acceptance import accept
from replicas.speculation.tree import Draft

UNUSABLE = -1
"""Stands for a row that allows no token; no draft contains it."""


@dataclass(frozen=True, slots=True)
class Block:
    """Committed tokens in order: the accepted drafted ones, then the recovered or bonus token."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """One per token when asked for, else empty."""
    path: tuple[int, ...] = ()
    """The accepted nodes of the draft."""
    unusable: Unusable | None = None
    """Why the row that would have been committed allows no token; then nothing is committed."""


def committed_block(draft: Draft, samples: Items[Sample | Unusable]) -> Block:
    """Apply the acceptance rule; without samples the block is empty.

    `samples[0]` is the row after the committed tokens, `samples[i + 1]` the one after node i. Unusable rows off the
    accepted branch do not matter: they follow tokens that never were.
    """
    if not samples:
        return Block()
    drawn = [UNUSABLE if isinstance(sample, Unusable) else sample.token_id for sample in samples]
    acceptance = accept(draft, drawn)
    used = [samples[0], *(samples[node + 1] for node in acceptance.path)]
    if isinstance(used[-1], Unusable):
        return Block(unusable=used[-1])
    logprobs = tuple(sample.logprob for sample in used if isinstance(sample, Sample) and sample.logprob is not None)
    return Block(acceptance.committed, logprobs, acceptance.path)

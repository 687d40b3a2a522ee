"""What one step commits for one sequence, from the rows that were sampled."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from fleet.generation import TokenLogprob
from replicas.engine.sampling import Sample
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
    is_unusable: bool = False
    """The row that would have been committed allows no token; nothing is committed."""


def committed_block(draft: Draft, samples: Items[Sample | None]) -> Block:
    """Apply the acceptance rule; without samples the block is empty.

    `samples[0]` is the row after the committed tokens, `samples[i + 1]` the one after node i. Unusable rows off the
    accepted branch do not matter: they follow tokens that never were.
    """
    if not samples:
        return Block()
    acceptance = accept(draft, [UNUSABLE if sample is None else sample.token_id for sample in samples])
    if acceptance.committed[-1] == UNUSABLE:
        return Block(is_unusable=True)
    used = [samples[0], *(samples[node + 1] for node in acceptance.path)]
    logprobs = tuple(sample.logprob for sample in used if sample is not None and sample.logprob is not None)
    return Block(acceptance.committed, logprobs, acceptance.path)

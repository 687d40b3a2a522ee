"""What one step commits for one sequence, from the rows that were sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fleet.generation import TokenLogprob
from replicas.engine.sampling import Sample, Unusable
from replicas.speculation.acceptance import Rows, accept
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


@dataclass(slots=True)
class LazySamples:
    """Rows that are sampled when they are first looked at: a draw from a large vocabulary is not cheap.

    As a row's token depends on nothing but that row, it does not matter which others are sampled.
    """

    count: int
    sample: Callable[[int], Sample | Unusable]
    _known: dict[int, Sample | Unusable] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int, /) -> Sample | Unusable:
        if row not in self._known:
            self._known[row] = self.sample(row)
        return self._known[row]


@dataclass(frozen=True, slots=True)
class _TokenIds:
    """The samples' tokens."""

    samples: Rows[Sample | Unusable]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int, /) -> int:
        sample = self.samples[row]
        return UNUSABLE if isinstance(sample, Unusable) else sample.token_id


def committed_block(draft: Draft, samples: Rows[Sample | Unusable]) -> Block:
    """Apply the acceptance rule; without samples the block is empty.

    `samples[0]` is the row after the committed tokens, `samples[i + 1]` the one after node i. Unusable rows off the
    accepted branch do not matter: they follow tokens that never were.
    """
    if len(samples) == 0:
        return Block()
    acceptance = accept(draft, _TokenIds(samples))
    used = [samples[0], *(samples[node + 1] for node in acceptance.path)]
    if isinstance(used[-1], Unusable):
        return Block(unusable=used[-1])
    logprobs = tuple(sample.logprob for sample in used if isinstance(sample, Sample) and sample.logprob is not None)
    return Block(acceptance.committed, logprobs, acceptance.path)

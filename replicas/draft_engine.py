"""Runs the draft session's work through a model: cache places, one forward pass, the target's own sampler and noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from torch import Tensor

from fleet.errors import OutOfMemory
from replicas.engine.kv_extents import Extent, KvExtents
from replicas.engine.model import Model, Segment
from replicas.engine.sampling import Draw, Sampler, UnusableLogits
from replicas.speculation.drafting import DraftedToken, DraftWork

GROWTH_TOKENS = 64
"""Least room beyond what is needed now; an extent that must move grows by half."""


@dataclass(frozen=True, slots=True)
class DraftRun:
    """What became of each piece of work: a token (None in the middle of a prompt), or no room."""

    done: tuple[tuple[DraftWork, DraftedToken | None], ...]
    refused: tuple[int, ...]
    """Sequences that hold no cache any more."""


class DraftEngine:
    """The draft model with the cache of all its sequences; used by one thread."""

    def __init__(self, model: Model, sampler: Sampler) -> None:
        self._model = model
        self._sampler = sampler
        self._extents = KvExtents(model.kv_tokens)
        self._held: dict[int, Extent] = {}
        """By sequence id, oldest first."""

    @property
    def used_tokens(self) -> int:
        return self._extents.used_tokens

    def release(self, sequence_ids: Iterable[int]) -> None:
        """Free the cache of sequences; ids without any are ignored."""
        for sequence_id in sequence_ids:
            extent = self._held.pop(sequence_id, None)
            if extent is not None:
                self._extents.free(extent)

    def release_all(self) -> None:
        self.release(tuple(self._held))

    def run(self, works: Sequence[DraftWork]) -> DraftRun:
        """One forward pass for all. Where there is no room the newest sequences lose their place; nothing raises."""
        evicted: list[int] = []
        for work in works:
            if work.sequence_id not in evicted:
                evicted += self._make_room(work)
        placed = [work for work in works if work.sequence_id not in evicted]
        try:
            drafted, unusable = self._forward(placed) if placed else ({}, ())
        except OutOfMemory:
            drafted, unusable = {}, tuple(work.sequence_id for work in placed)
        self.release(unusable)
        done = tuple((work, drafted.get(work.sequence_id)) for work in placed if work.sequence_id not in unusable)
        return DraftRun(done, (*evicted, *unusable))

    def _make_room(self, work: DraftWork) -> list[int]:
        """Let the sequence's extent hold this work too; the ids that lost their place, perhaps its own."""
        needed = work.position + len(work.token_ids)
        held = self._held.get(work.sequence_id)
        if held is None and work.position > 0:
            return [work.sequence_id]
        if held is not None and needed <= held.length:
            return []
        evicted: list[int] = []
        while not self._place(work, needed):
            newest = next(reversed(self._held), work.sequence_id)
            self.release([newest])
            evicted.append(newest)
            if newest == work.sequence_id:
                break
        return evicted

    def _place(self, work: DraftWork, needed: int) -> bool:
        held = self._held.get(work.sequence_id)
        if held is None:
            extent = self._extents.allocate(needed + GROWTH_TOKENS) or self._extents.allocate(needed)
            if extent is not None:
                self._held[work.sequence_id] = extent
            return extent is not None
        grown = self._extents.grow(held, needed + GROWTH_TOKENS) or self._extents.grow(held, needed)
        if grown is None:
            grown = self._extents.allocate(needed + max(GROWTH_TOKENS, needed // 2)) or self._extents.allocate(needed)
            if grown is None:
                return False
            self._model.move(held.start, grown.start, work.position)
            self._extents.free(held)
        self._held[work.sequence_id] = grown
        return True

    def _forward(self, works: Sequence[DraftWork]) -> tuple[dict[int, DraftedToken], tuple[int, ...]]:
        """Drafted tokens by sequence id, and the ids whose logits are no distribution."""
        segments = [
            Segment(self._held[work.sequence_id].start, work.position, work.token_ids, int(work.samples))
            for work in works
        ]
        logits = self._model.forward(segments).logits
        sampling = [work for work in works if work.samples]
        try:
            return self._sample(logits, sampling), ()
        except UnusableLogits as error:
            rows = [row for row in range(len(sampling)) if row not in error.reasons]
            usable = [sampling[row] for row in rows]
            bad = tuple(sampling[row].sequence_id for row in error.reasons)
            return self._sample(logits[rows], usable), bad

    def _sample(self, logits: Tensor, works: Sequence[DraftWork]) -> dict[int, DraftedToken]:
        """The first choice of every row, and the second where the session may want to draft ahead on it."""
        if not works:
            return {}
        draws = [_draw(work) for work in works]
        first = [sample.token_id for sample in self._sampler.sample(logits, draws)]
        second: dict[int, int] = {}
        rows = [row for row, work in enumerate(works) if work.wants_runner_up]
        if rows:
            without = logits[rows]
            without[range(len(rows)), [first[row] for row in rows]] = -inf
            samples = self._sampler.sample(without, [draws[row] for row in rows])
            second = dict(zip(rows, (sample.token_id for sample in samples), strict=True))
        return {
            work.sequence_id: DraftedToken(token, second.get(row))
            for row, (work, token) in enumerate(zip(works, first, strict=True))
        }


def _draw(work: DraftWork) -> Draw:
    return Draw(work.sampling, work.choice_index, work.prompt_token_ids, work.output_token_ids)

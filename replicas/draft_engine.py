"""Runs the draft session's work through a model: cache places, one forward pass, the target's own sampler and noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from torch import Tensor

from fleet.errors import OutOfMemory
from replicas.engine.kv_extents import Extent, KvExtents
from replicas.engine.model import Model
from replicas.engine.packing import Segment
from replicas.engine.sampling import Draw, Sampler
from replicas.speculation.drafting import DraftedToken, DraftWork


@dataclass(frozen=True, slots=True)
class DraftRun:
    """What became of each piece of work: a token (None in the middle of a prompt), or no room."""

    done: tuple[tuple[DraftWork, DraftedToken | None], ...]
    refused: tuple[int, ...]
    """Sequences that hold no cache any more."""
    ran_out_of_memory: bool = False


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
        ran_out_of_memory = False
        for work in works:
            try:
                if work.sequence_id not in evicted:
                    self._make_room(work, evicted)
            except OutOfMemory:
                self.release([work.sequence_id])
                evicted.append(work.sequence_id)
                ran_out_of_memory = True
        placed = [work for work in works if work.sequence_id not in evicted]
        try:
            drafted, unusable = self._forward(placed) if placed else ({}, ())
        except OutOfMemory:
            drafted, unusable = {}, tuple(work.sequence_id for work in placed)
            ran_out_of_memory = True
        self.release(unusable)
        done = tuple((work, drafted.get(work.sequence_id)) for work in placed if work.sequence_id not in unusable)
        return DraftRun(done, (*evicted, *unusable), ran_out_of_memory)

    def _make_room(self, work: DraftWork, evicted: list[int]) -> None:
        """Let the sequence's extent hold this work too; the ids that lose their place, perhaps its own, are added."""
        needed = work.position + len(work.token_ids)
        held = self._held.get(work.sequence_id)
        if held is None and work.position > 0:
            evicted.append(work.sequence_id)
            return
        if held is not None and needed <= held.length:
            return
        while not self._place(work, needed):
            newest = next(reversed(self._held), work.sequence_id)
            self.release([newest])
            evicted.append(newest)
            if newest == work.sequence_id:
                break

    def _place(self, work: DraftWork, needed: int) -> bool:
        held = self._held.get(work.sequence_id)
        extent = self._extents.reserve(needed, held)
        if extent is None:
            return False
        if held is not None and extent.start != held.start:
            try:
                self._model.move(held.start, extent.start, work.position)
            except OutOfMemory:
                self._extents.free(extent)
                raise
            self._extents.free(held)
        self._held[work.sequence_id] = extent
        return True

    def _forward(self, works: Sequence[DraftWork]) -> tuple[dict[int, DraftedToken], tuple[int, ...]]:
        """Drafted tokens by sequence id, and the ids whose logits allow none."""
        segments = [
            Segment(self._held[work.sequence_id].start, work.position, work.token_ids, int(work.samples))
            for work in works
        ]
        logits = self._model.forward(segments).logits
        sampling = [work for work in works if work.samples]
        drafted = self._sample(logits, sampling)
        found = {sampling[row].sequence_id: token for row, token in drafted.items()}
        return found, tuple(work.sequence_id for row, work in enumerate(sampling) if row not in drafted)

    def _sample(self, logits: Tensor, works: Sequence[DraftWork]) -> dict[int, DraftedToken]:
        """By row, where it allows one: the first choice, and the second where the session may draft ahead on it."""
        draws = [_draw(work) for work in works]
        drafted = self._first_choices(logits, works, draws)
        rows = [row for row in drafted if works[row].wants_runner_up]
        if rows:
            without = logits[rows]
            without[range(len(rows)), [drafted[row].token_id for row in rows]] = -inf
            for row, second in self._drawn(without, rows, draws).items():
                drafted[row] = replace(drafted[row], runner_up=second)
        return drafted

    def _first_choices(
        self, logits: Tensor, works: Sequence[DraftWork], draws: Sequence[Draw]
    ) -> dict[int, DraftedToken]:
        named = [row for row, work in enumerate(works) if work.names_distribution]
        coupled = [row for row, work in enumerate(works) if not work.names_distribution]
        own = self._drawn(logits if not named else logits[coupled], coupled, draws)
        drafted = {row: DraftedToken(token_id) for row, token_id in own.items()}
        drafts = self._sampler.drafts(logits[named], [draws[row] for row in named], [1] * len(named)) if named else ()
        for row, draft in zip(named, drafts, strict=True):
            if draft is not None:
                drafted[row] = DraftedToken(draft[0][0], distribution=draft[1])
        return drafted

    def _drawn(self, logits: Tensor, rows: Sequence[int], draws: Sequence[Draw]) -> dict[int, int]:
        """What the target's own noise draws from the logits of these rows, where they allow a token."""
        found = self._sampler.candidates(logits, [draws[row] for row in rows], [1] * len(rows))
        return {row: token_ids[0] for row, token_ids in zip(rows, found, strict=True) if token_ids}


def _draw(work: DraftWork) -> Draw:
    return Draw(work.sampling, work.choice_index, work.prompt_token_ids, work.output_token_ids)

"""Which sequences run in this step, with how many tokens, and where their keys and values lie. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from replicas.engine.kv_extents import GROWTH_TOKENS, Extent, KvExtents
from replicas.engine.sequence import Sequence
from replicas.speculation.tree import NO_DRAFT, Draft


@dataclass(frozen=True, slots=True)
class Work:
    """A sequence's share of a step: its next pending tokens, and drafted ones behind the last of them."""

    sequence: Sequence
    new_tokens: int
    drafted: Draft = NO_DRAFT

    @property
    def samples(self) -> bool:
        """Whether the step reaches the end of what is committed, so that new tokens come out."""
        return self.new_tokens == self.sequence.pending


@dataclass(frozen=True, slots=True)
class Move:
    """Cached tokens that must be copied before the step, in the order of the plan."""

    source: int
    target: int
    length: int


@dataclass(slots=True)
class Plan:
    """One step. Moves come first; preempted sequences have lost their cache and wait again."""

    works: list[Work] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)


class Scheduler:
    """Continuous batching, first come first served.

    Every decoding sequence is in every step; drafted tokens, prompts under way and newly admitted prompts share
    what is left of `max_tokens`, drafts among themselves in equal parts. A decoding sequence that cannot grow takes
    the room of the youngest.
    """

    def __init__(self, extents: KvExtents, *, max_sequences: int, max_tokens: int) -> None:
        self._extents = extents
        self._max_tokens = max_tokens
        # One token of every step stays free for prompts, however many decode.
        self._max_sequences = min(max_sequences, max_tokens - 1)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        """In order of admission: the last is the youngest."""

    def add(self, sequence: Sequence) -> None:
        if sequence.is_probe:
            self.waiting.appendleft(sequence)
        else:
            self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a finished, failed or cancelled sequence and free its extent."""
        if sequence.extent is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._release(sequence)

    @property
    def draft_room(self) -> int:
        """Drafted tokens that the next step has room for.

        Prompts keep half of what decoding leaves, so that long drafts cannot starve them.
        """
        decoding = sum(sequence.pending == 1 for sequence in self.running)
        left = self._max_tokens - decoding
        return left // 2 if self.waiting or decoding < len(self.running) else left

    def schedule(self, drafts: Mapping[int, Draft]) -> Plan:
        """The next step; `drafts` are the proposals by sequence id, of which any prefix may be used."""
        plan = Plan()
        decoding = self._make_room_to_decode(plan)
        budget = self._max_tokens - len(decoding)
        prefilling = [sequence for sequence in self.running if sequence.pending > 1]
        wanted = [drafts.get(sequence.id, NO_DRAFT) for sequence in decoding]
        shares = fair_shares([len(draft) for draft in wanted], self.draft_room)
        for sequence, draft, share in zip(decoding, wanted, shares, strict=True):
            drafted = self._fit_draft(plan, sequence, draft.first(share))
            budget -= len(drafted)
            plan.works.append(Work(sequence, 1, drafted))
        for sequence in prefilling:
            budget -= self._add_prefill(plan, sequence, budget)
        # Whatever a preemption has freed belongs to those that already run.
        while budget > 0 and not plan.preempted and self._admit_next():
            budget -= self._add_prefill(plan, self.running[-1], budget)
        return plan

    def _make_room_to_decode(self, plan: Plan) -> list[Sequence]:
        decoding: list[Sequence] = []
        for sequence in [candidate for candidate in self.running if candidate.pending == 1]:
            while sequence.extent is not None and not self._extend(plan, sequence, len(sequence.token_ids)):
                self._preempt(plan, self.running[-1])
            if sequence.extent is not None:
                decoding.append(sequence)
        return decoding

    def _fit_draft(self, plan: Plan, sequence: Sequence, drafted: Draft) -> Draft:
        """As much of a draft as there is room for; nobody is preempted for a draft."""
        if not drafted or self._extend(plan, sequence, len(sequence.token_ids) + len(drafted)):
            return drafted
        assert sequence.extent is not None
        return drafted.first(sequence.extent.length - len(sequence.token_ids))

    def _add_prefill(self, plan: Plan, sequence: Sequence, budget: int) -> int:
        new_tokens = min(sequence.pending, budget)
        if new_tokens > 0:
            plan.works.append(Work(sequence, new_tokens))
        return new_tokens

    def _admit_next(self) -> bool:
        if not self.waiting or len(self.running) >= self._max_sequences:
            return False
        sequence = self.waiting[0]
        length = len(sequence.token_ids)
        extent = self._allocate(min(sequence.token_limit, length + GROWTH_TOKENS), length)
        if extent is None:
            return False
        sequence.extent = extent
        self.running.append(self.waiting.popleft())
        return True

    def _extend(self, plan: Plan, sequence: Sequence, length: int) -> bool:
        """Give the sequence room for `length` tokens: in place if possible, else elsewhere at twice the size."""
        extent = sequence.extent
        assert extent is not None
        if length <= extent.length:
            return True
        for wanted in (min(sequence.token_limit, length + GROWTH_TOKENS), length):
            grown = self._extents.grow(extent, wanted) if wanted >= length else None
            if grown is not None:
                sequence.extent = grown
                return True
        moved = self._allocate(min(sequence.token_limit, 2 * length), length)
        if moved is None:
            return False
        plan.moves.append(Move(extent.start, moved.start, sequence.cached))
        self._extents.free(extent)
        sequence.extent = moved
        return True

    def _allocate(self, wanted: int, needed: int) -> Extent | None:
        roomy = self._extents.allocate(wanted) if wanted > needed else None
        return roomy or self._extents.allocate(needed)

    def _preempt(self, plan: Plan, sequence: Sequence) -> None:
        """Send a sequence back to the head of the queue; it will run its tokens again from the first."""
        self.running.remove(sequence)
        self._release(sequence)
        sequence.cached = 0
        self.waiting.appendleft(sequence)
        plan.preempted.append(sequence)

    def _release(self, sequence: Sequence) -> None:
        assert sequence.extent is not None
        self._extents.free(sequence.extent)
        sequence.extent = None


def fair_shares(wanted: Items[int], available: int) -> list[int]:
    """What each gets of `available`: all that it wants, or as much as any other that gets less than it wants.

    Of what cannot be divided, the last get one more.
    """
    shares = [0] * len(wanted)
    smallest_first = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for taken, index in enumerate(smallest_first):
        shares[index] = min(wanted[index], available // (len(wanted) - taken))
        available -= shares[index]
    return shares

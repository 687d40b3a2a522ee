"""What happened between engine and proposer: a proposer and a step runner that take notes and change nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from fleet.clock import Clock
from replicas.engine.features import FeatureReader, Seen
from replicas.engine.model import Model
from replicas.engine.sampling import Sampler
from replicas.engine.scheduler import Plan
from replicas.engine.step import StepResult, StepRunner
from replicas.speculation.messages import Closing, Opening, Proposal, SequenceVerdict
from replicas.speculation.proposer import Proposer, ProposerState, Want
from replicas.speculation.tree import Draft


@dataclass(slots=True)
class Notes:
    """Counts of one block. A round is one sequence's share of a step; the round that ends an answer is not counted."""

    rounds: int = 0
    off: int = 0
    """Rounds for which no draft was asked: the adaptive length was 0."""
    drafted: list[int] = field(default_factory=list)
    """Rounds whose draft was longer than i tokens (levels of a tree)."""
    accepted: list[int] = field(default_factory=list)
    """Rounds that accepted more than i tokens."""
    ready: int = 0
    """Drafts that were complete before their verdict arrived."""
    asked_steps: int = 0
    draft_seconds: float = 0.0
    """The engine's thread in `propose`, waiting included."""
    read_steps: int = 0
    read_seconds: float = 0.0
    """The engine's thread in a head's `read` of all that the target ran over: prompts, and steps that asked nothing."""
    verify_steps: int = 0
    """Steps without a prompt that verified at least one draft."""
    verify_seconds: float = 0.0
    plain_steps: int = 0
    """Steps without a prompt and without a draft."""
    plain_seconds: float = 0.0

    def note_round(self, depth: int, accepted: int) -> None:
        self.rounds += 1
        _count(self.drafted, depth)
        _count(self.accepted, accepted)

    def plus(self, other: Notes) -> Notes:
        """Both together."""
        return Notes(
            rounds=self.rounds + other.rounds,
            off=self.off + other.off,
            drafted=_added(self.drafted, other.drafted),
            accepted=_added(self.accepted, other.accepted),
            ready=self.ready + other.ready,
            asked_steps=self.asked_steps + other.asked_steps,
            draft_seconds=self.draft_seconds + other.draft_seconds,
            read_steps=self.read_steps + other.read_steps,
            read_seconds=self.read_seconds + other.read_seconds,
            verify_steps=self.verify_steps + other.verify_steps,
            verify_seconds=self.verify_seconds + other.verify_seconds,
            plain_steps=self.plain_steps + other.plain_steps,
            plain_seconds=self.plain_seconds + other.plain_seconds,
        )


def _added(left: Sequence[int], right: Sequence[int]) -> list[int]:
    return [one + other for one, other in zip_longest(left, right, fillvalue=0)]


def _count(counts: list[int], length: int) -> None:
    counts.extend([0] * (length - len(counts)))
    for index in range(length):
        counts[index] += 1


class ProposerProbe:
    """A `Proposer`, and a `FeatureReader` where the other one is."""

    def __init__(self, proposer: Proposer, reader: FeatureReader | None) -> None:
        self.notes = Notes()
        self._proposer = proposer
        self._reader = reader
        self._asked: set[int] = set()
        self._depths: dict[int, int] = {}

    def open(self, opening: Opening) -> None:
        self._proposer.open(opening)

    def read(self, seen: Sequence[Seen]) -> None:
        assert self._reader is not None
        began = time.perf_counter()
        self._reader.read(seen)
        self.notes.read_seconds += time.perf_counter() - began
        self.notes.read_steps += 1

    def propose(self, wants: Sequence[Want]) -> Mapping[int, Proposal]:
        began = time.perf_counter()
        proposals = self._proposer.propose(wants)
        self.notes.draft_seconds += time.perf_counter() - began
        self.notes.asked_steps += 1
        self.notes.ready += sum(proposal.was_ready for proposal in proposals.values())
        self._asked = {want.sequence_id for want in wants}
        self._depths = {want.sequence_id: _verified_depth(want, proposals.get(want.sequence_id)) for want in wants}
        return proposals

    def settle(self, verdicts: Sequence[SequenceVerdict]) -> None:
        for verdict in verdicts:
            self.notes.note_round(self._depths.get(verdict.sequence_id, 0), verdict.accepted)
            self.notes.off += verdict.sequence_id not in self._asked
        self._asked, self._depths = set(), {}
        self._proposer.settle(verdicts)

    def close(self, closing: Closing) -> None:
        self._proposer.close(closing)

    def state(self) -> ProposerState:
        return self._proposer.state()


def _verified_depth(want: Want, proposal: Proposal | None) -> int:
    """Levels of a proposal that the engine will verify: it cuts a chain to what it asked for."""
    return 0 if proposal is None else min(want.max_tokens, Draft(proposal.token_ids, proposal.parents).depth)


class TimedRunner(StepRunner):
    """Knows how long steps took that only decoded."""

    def __init__(self, model: Model, sampler: Sampler) -> None:
        super().__init__(model, sampler)
        self.notes = Notes()

    def run(self, plan: Plan, clock: Clock) -> StepResult:
        began = time.perf_counter()
        result = super().run(plan, clock)
        seconds = time.perf_counter() - began
        if not all(work.samples and work.new_tokens == 1 for work in plan.works):
            return result
        if any(work.drafted for work in plan.works):
            self.notes.verify_steps += 1
            self.notes.verify_seconds += seconds
        else:
            self.notes.plain_steps += 1
            self.notes.plain_seconds += seconds
        return result

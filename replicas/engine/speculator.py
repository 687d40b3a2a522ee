"""The engine's side of speculation: which sequences get how long a draft, and what the proposer is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

from torch import Tensor

from fleet.clock import Clock
from fleet.generation import Round
from replicas.engine.features import FeatureReader, Seen
from replicas.engine.sequence import Sequence
from replicas.speculation.draft_length import DraftLengths
from replicas.speculation.messages import Closing, Opening, Proposal, SequenceVerdict
from replicas.speculation.proposer import Proposer, ProposerHealth, ProposerState, Want
from replicas.speculation.tree import NO_DRAFT, Draft


@dataclass(frozen=True, slots=True)
class SpeculationPolicy:
    """How a path speculates."""

    max_draft_tokens: int
    is_adaptive: bool
    """Choose lengths from acceptance and costs, else always the longest."""
    must_answer: bool
    """A missing proposal is late; otherwise it only means that there was nothing to propose."""
    level_rows: tuple[int, ...] = ()
    """Tokens that each level of a drafted tree adds; empty for chains, where it is one."""


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """What one step computed on tokens of a sequence that goes on."""

    sequence: Sequence
    position: int
    """Of the first of them."""
    features: Tensor | None


@dataclass(frozen=True, slots=True)
class Settled:
    """What one step committed for an open sequence that goes on."""

    sequence: Sequence
    base_length: int
    committed: tuple[int, ...]
    round: Round
    depth: int
    """Levels of the draft; below `round.drafted` where it was a tree."""


class Speculator:
    """Keeps the proposer in step with the sequences. Nothing a proposer answers can do more than cost time."""

    def __init__(
        self,
        proposer: Proposer,
        policy: SpeculationPolicy,
        vocab_size: int,
        clock: Clock,
        reader: FeatureReader | None = None,
    ) -> None:
        """`reader` is the proposer again, where it drafts from the target's features."""
        self._proposer = proposer
        self._reader = reader
        self._policy = policy
        self._vocab_size = vocab_size
        self._clock = clock
        self._lengths = DraftLengths(policy.level_rows)
        self._is_learning = True
        """What a proposer leaves undone while it is lost, or not even asked, says nothing of what it can do."""

    def propose(self, sequences: Iterable[Sequence]) -> tuple[dict[int, Draft], frozenset[int]]:
        """Drafts by sequence id for the next step, and the sequences whose proposal is late or wrong.

        Waits no longer than the proposer's own deadline.
        """
        wants = [
            Want(sequence.id, sequence.epoch, len(sequence.token_ids), sequence.draft_length)
            for sequence in sequences
            if sequence.is_open and sequence.draft_length > 0
        ]
        if not wants:
            return {}, frozenset()
        started = self._clock.monotonic()
        proposals = self._proposer.propose(wants)
        seconds = self._clock.monotonic() - started
        self._is_learning = self._proposer.state().health == ProposerHealth.HEALTHY
        drafts = {want.sequence_id: self._usable(want, proposals.get(want.sequence_id)) for want in wants}
        # An empty proposal owes nothing: a prompt still being read, the draft's context, its full cache.
        owed = (want.sequence_id for want in wants if not _is_empty(proposals.get(want.sequence_id)))
        missing = frozenset(sequence_id for sequence_id in owed if not drafts[sequence_id])
        if self._is_learning and (missing or any(drafts.values())):
            self._lengths.observe_draft(max(want.max_tokens for want in wants), seconds)
        return drafts, missing if self._policy.must_answer else frozenset()

    def observe_decoding(self, drafted: int, seconds: float) -> None:
        """Learn what a target step costs that carried so many drafted rows and no prompt."""
        self._lengths.observe_target(drafted, seconds)

    def read(self, passed: Items[Passed]) -> None:
        """Hand over the features of what a step computed; before `settle`."""
        if self._reader is None:
            return
        seen = []
        for item in passed:
            if item.features is not None and self._longest(item.sequence) > 0:
                first = item.position + 1
                followers = tuple(item.sequence.token_ids[first : first + len(item.features)])
                seen.append(Seen(item.sequence.id, item.position, item.features, followers))
        self._reader.read(seen)

    def settle(self, settled: Items[Settled], joined: Items[Sequence], max_rows: int) -> None:
        """After a step: choose the next lengths, tell the proposer what was committed and who has joined.

        `max_rows` drafted tokens have room in the next step.
        """
        joined = [sequence for sequence in joined if self._longest(sequence) > 0]
        for item in settled if self._is_learning else ():
            self._lengths.observe_round(item.sequence.id, replace(item.round, drafted=item.depth))
        lengths = self._choose([*(item.sequence for item in settled), *joined], max_rows)
        verdicts = [_verdict(item, lengths[item.sequence.id]) for item in settled]
        for item in settled:
            item.sequence.draft_length = lengths[item.sequence.id]
            item.sequence.settled_length = len(item.sequence.token_ids)
        if verdicts:
            self._proposer.settle(verdicts)
        for sequence in joined:
            self._open(sequence, lengths[sequence.id])

    def close(self, sequences: Iterable[Sequence], reason: str) -> None:
        """Stop to speculate on sequences; one that is not open can only have been read."""
        closed = [sequence for sequence in sequences if sequence.is_open or self._reader is not None]
        last_committed = {
            sequence.id: tuple(sequence.token_ids[sequence.settled_length :]) for sequence in closed if sequence.is_open
        }
        for sequence in closed:
            sequence.is_open = False
        if closed:
            sequence_ids = tuple(sequence.id for sequence in closed)
            self._lengths.forget(sequence_ids)
            self._proposer.close(Closing(sequence_ids, reason, last_committed))

    def state(self) -> ProposerState:
        return self._proposer.state()

    def _open(self, sequence: Sequence, draft_length: int) -> None:
        sequence.epoch += 1
        sequence.is_open = True
        sequence.draft_length = draft_length
        sequence.settled_length = len(sequence.token_ids)
        request = sequence.request
        self._proposer.open(
            Opening(
                sequence.id,
                sequence.epoch,
                tuple(sequence.token_ids),
                sequence.prompt_length,
                request.sampling,
                request.choice_index,
                draft_length,
            )
        )

    def _choose(self, sequences: Items[Sequence], max_rows: int) -> Mapping[int, int]:
        # The target adds a token of its own, so a draft of all remaining ones would draft one for nothing.
        caps = {sequence.id: max(0, min(self._longest(sequence), sequence.remaining - 1)) for sequence in sequences}
        return self._lengths.choose(caps, max_rows) if self._policy.is_adaptive else caps

    def _longest(self, sequence: Sequence) -> int:
        """The longest draft that the request and the path allow."""
        asked = sequence.request.num_speculative_tokens
        return self._policy.max_draft_tokens if asked is None else min(asked, self._policy.max_draft_tokens)

    def _usable(self, want: Want, proposal: Proposal | None) -> Draft:
        """The proposal's tokens if they can be verified: for this very state, and all of them real tokens."""
        if proposal is None or (proposal.epoch, proposal.base_length) != (want.epoch, want.base_length):
            return NO_DRAFT
        draft = Draft(proposal.token_ids, proposal.parents, proposal.distributions)
        if not draft.is_tree:
            draft = draft.first(want.max_tokens)
        return draft if draft.is_sound(self._vocab_size) and draft.depth <= want.max_tokens else NO_DRAFT


def _verdict(item: Settled, next_draft_length: int) -> SequenceVerdict:
    sequence = item.sequence
    return SequenceVerdict(
        sequence.id, sequence.epoch, item.base_length, item.round.accepted, item.committed, next_draft_length
    )


def _is_empty(proposal: Proposal | None) -> bool:
    return proposal is not None and not proposal.token_ids

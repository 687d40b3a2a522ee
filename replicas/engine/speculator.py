"""The engine's side of speculation: which sequences get how long a draft, and what the proposer is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleet.generation import Round
from replicas.engine.sequence import Sequence
from replicas.speculation.messages import Closing, Opening, Proposal, SequenceVerdict
from replicas.speculation.proposer import Proposer, ProposerState, Want


@dataclass(frozen=True, slots=True)
class Settled:
    """What one step committed for an open sequence."""

    sequence: Sequence
    base_length: int
    committed: tuple[int, ...]
    round: Round


class Speculator:
    """Keeps the proposer in step with the sequences. Nothing a proposer answers can do more than cost time."""

    def __init__(self, proposer: Proposer, *, max_draft_tokens: int, vocab_size: int, must_answer: bool) -> None:
        """`must_answer`: whether a missing proposal is late, or only means that there was nothing to propose."""
        self._proposer = proposer
        self._max_draft_tokens = max_draft_tokens
        self._vocab_size = vocab_size
        self._must_answer = must_answer

    def propose(self, sequences: Iterable[Sequence]) -> tuple[dict[int, tuple[int, ...]], frozenset[int]]:
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
        proposals = self._proposer.propose(wants)
        drafts = {want.sequence_id: self._usable(want, proposals.get(want.sequence_id)) for want in wants}
        missing = frozenset(sequence_id for sequence_id, tokens in drafts.items() if not tokens)
        return drafts, missing if self._must_answer else frozenset()

    def settle(self, settled: Iterable[Settled], opened: Iterable[Sequence]) -> None:
        """Tell the proposer what was committed, how many tokens to draft next, and which sequences are new."""
        verdicts = []
        for item in settled:
            sequence = item.sequence
            sequence.draft_length = self._next_length(sequence)
            verdicts.append(
                SequenceVerdict(
                    sequence.id,
                    sequence.epoch,
                    item.base_length,
                    item.round.accepted,
                    item.committed,
                    sequence.draft_length,
                )
            )
        if verdicts:
            self._proposer.settle(verdicts)
        for sequence in opened:
            self._open(sequence)

    def _open(self, sequence: Sequence) -> None:
        """Start to speculate on a sequence whose prompt is cached, unless its request forbids it."""
        if self._longest(sequence) == 0:
            return
        sequence.epoch += 1
        sequence.is_open = True
        sequence.draft_length = self._next_length(sequence)
        request = sequence.request
        self._proposer.open(
            Opening(
                sequence.id,
                sequence.epoch,
                tuple(sequence.token_ids),
                sequence.prompt_length,
                request.sampling,
                request.choice_index,
                sequence.draft_length,
            )
        )

    def close(self, sequences: Iterable[Sequence], reason: str) -> None:
        """Stop to speculate on sequences; those that are not open are skipped."""
        closed = [sequence for sequence in sequences if sequence.is_open]
        for sequence in closed:
            sequence.is_open = False
        if closed:
            self._proposer.close(Closing(tuple(sequence.id for sequence in closed), reason))

    def note_step(self, rows: int, seconds: float) -> None:
        """Learn what a target step of so many rows costs."""

    def state(self) -> ProposerState:
        return self._proposer.state()

    def _longest(self, sequence: Sequence) -> int:
        """The longest draft this request allows."""
        asked = sequence.request.num_speculative_tokens
        return self._max_draft_tokens if asked is None else min(asked, self._max_draft_tokens)

    def _next_length(self, sequence: Sequence) -> int:
        # The target adds a token of its own, so a draft of all remaining ones would draft one for nothing.
        return max(0, min(self._longest(sequence), sequence.remaining - 1))

    def _usable(self, want: Want, proposal: Proposal | None) -> tuple[int, ...]:
        """The proposal's tokens as far as they can be verified: for this very state, and real tokens."""
        if proposal is None or (proposal.epoch, proposal.base_length) != (want.epoch, want.base_length):
            return ()
        tokens = proposal.token_ids[: want.max_tokens]
        if not all(0 <= token_id < self._vocab_size for token_id in tokens):
            return ()
        return tokens

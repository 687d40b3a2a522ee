"""Faults that are caused on purpose, at the places where real ones arise, to see the guardrails work."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from fleet.config import DrillConfig
from replicas.engine.scheduler import Work
from replicas.speculation.messages import Closing, Opening, Proposal, SequenceVerdict
from replicas.speculation.proposer import Proposer, ProposerState, Want
from replicas.speculation.rejection import Sparse

MORE_THAN_THERE_IS = 2**60
"""Bytes."""


class DrilledSteps:
    """Slow target steps, and one allocation that really fails once enough requests were seen."""

    def __init__(self, drill: DrillConfig) -> None:
        self._delay_seconds = drill.step_delay_ms / 1000
        self._awaited_requests = drill.out_of_memory_after_requests
        self._seen: set[int] = set()

    def strike(self, works: Sequence[Work]) -> None:
        """Called where the step allocates; the allocator's own error comes out."""
        time.sleep(self._delay_seconds)
        if self._awaited_requests is None:
            return
        present = {work.sequence.id for work in works if not work.sequence.is_probe}
        self._seen |= present
        if present and len(self._seen) >= self._awaited_requests:
            self._awaited_requests = None
            torch.empty(MORE_THAN_THERE_IS, dtype=torch.uint8)


class DrilledProposer:
    """A proposer in the target's own process that is slow, or whose tokens are useless."""

    def __init__(self, proposer: Proposer, drill: DrillConfig, vocab_size: int) -> None:
        self._proposer = proposer
        self._delay_seconds = drill.draft_delay_ms / 1000
        self._is_useless = drill.useless_draft
        self._vocab_size = vocab_size

    def open(self, opening: Opening) -> None:
        self._proposer.open(opening)

    def propose(self, wants: Sequence[Want]) -> Mapping[int, Proposal]:
        time.sleep(self._delay_seconds)
        proposals = self._proposer.propose(wants)
        if not self._is_useless:
            return proposals
        return {sequence_id: spoil(proposal, self._vocab_size) for sequence_id, proposal in proposals.items()}

    def settle(self, verdicts: Sequence[SequenceVerdict]) -> None:
        self._proposer.settle(verdicts)

    def close(self, closing: Closing) -> None:
        self._proposer.close(closing)

    def state(self) -> ProposerState:
        return self._proposer.state()


def spoil(proposal: Proposal, vocab_size: int) -> Proposal:
    """The proposal with valid tokens that have nothing to do with the text."""
    shift = vocab_size // 2
    token_ids = tuple((token + shift) % vocab_size for token in proposal.token_ids)
    # A judged draft must have been drawn from what it names; a tree whose nodes were not is left to the coupled rule.
    is_judged = proposal.distributions and not proposal.parents
    distributions = tuple(map(Sparse.certain, token_ids)) if is_judged else ()
    return replace(proposal, token_ids=token_ids, distributions=distributions)

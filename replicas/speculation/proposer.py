"""The engine's seam to whatever drafts tokens: a draft worker over the wire, prompt lookup, or a test's fake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from replicas.speculation.messages import Closing, Opening, Proposal, SequenceVerdict


class ProposerHealth(StrEnum):
    """How well a proposer is; only `healthy` and `degraded` ones answer."""

    NONE = "none"
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Want:
    """A sequence that is about to be stepped and could use a proposal of 1 to `max_tokens` tokens."""

    sequence_id: int
    epoch: int
    base_length: int
    """Committed tokens, prompt included."""
    max_tokens: int


@dataclass(frozen=True, slots=True)
class ProposerState:
    """What the last rounds looked like."""

    health: str
    """One of `ProposerHealth`."""
    draft_seconds: float
    """Time spent on drafting in the last round."""
    wire_seconds: float
    """Round-trip time beyond drafting in the last round; 0 within one process."""
    out_of_memory: int = 0
    """Times so far that it could not allocate; it drafted nothing then."""


class Proposer(Protocol):
    """Drafts tokens for open sequences.

    Called from the engine thread only. No method raises, and none blocks past the proposer's own deadline:
    a proposer can cost time, never correctness and never a request.
    """

    def open(self, opening: Opening) -> None:
        """Start to draft for a sequence; the same id with a higher epoch replaces the earlier one."""

    def propose(self, wants: Sequence[Want]) -> Mapping[int, Proposal]:
        """Proposals by sequence id; a sequence missing in the answer was late or refused: a zero-draft round."""

    def settle(self, verdicts: Sequence[SequenceVerdict]) -> None:
        """Learn what the target committed, for sequences with and without a proposal."""

    def close(self, closing: Closing) -> None:
        """Forget sequences and free what they hold; unknown ids are ignored."""

    def state(self) -> ProposerState:
        """Health and costs, for reports and for choosing the next draft length."""

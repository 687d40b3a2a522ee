"""What target and draft say to each other, in our own words; `verify_rpc/codec.py` puts them on the wire.

Every item is keyed by (sequence id, epoch, base length). The base length counts all committed tokens,
prompt included, so an item is stale exactly when its base length is below the sequence's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.generation import SamplingParams
from replicas.speculation.rejection import Sparse

PROTOCOL_VERSION = 2
FINISHED = "finished"
"""Reason of a closing where the sequence came to its own end."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The draft introduces itself."""

    protocol_version: int
    tokenizer_hash: str
    vocab_size: int
    model: str
    revision: str
    max_model_len: int
    max_draft_tokens: int
    names_distributions: bool = False
    """It can say what it drew each token from. Drafts older than the question cannot."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The target takes the draft on, and says how it is to draft."""

    protocol_version: int
    model: str
    draft_ahead: bool
    wants_distributions: bool = False
    """Acceptance by rejection: draw with noise of the draft's own, and name what was drawn from."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The target will not work with this draft; the reason names what differs."""

    reason: str


@dataclass(frozen=True, slots=True)
class Opening:
    """A sequence to draft for: everything committed so far, how it is sampled, how many tokens to draft first."""

    sequence_id: int
    epoch: int
    token_ids: tuple[int, ...]
    """Prompt and committed output."""
    prompt_length: int
    sampling: SamplingParams
    choice_index: int
    draft_length: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted tokens that follow `base_length` committed ones; the target may use any prefix."""

    sequence_id: int
    epoch: int
    base_length: int
    token_ids: tuple[int, ...]
    draft_seconds: float = 0.0
    """Time between the arrival of the verdict (or opening) at the draft and this answer to it."""
    was_ready: bool = False
    """Drafted ahead: it was there before its verdict arrived."""
    parents: tuple[int, ...] = ()
    """Of a tree, as in `tree.Draft`; empty for a chain. Only proposers in the target's process draft trees."""
    distributions: tuple[Sparse, ...] = ()
    """What each token was drawn from, as in `tree.Draft`."""


@dataclass(frozen=True, slots=True)
class SequenceVerdict:
    """What the target made of a proposal (or of none) and what it committed: accepted, recovered or bonus."""

    sequence_id: int
    epoch: int
    base_length: int
    """Committed length before this verdict; afterwards it is base_length + len(committed)."""
    accepted: int
    committed: tuple[int, ...]
    next_draft_length: int


@dataclass(frozen=True, slots=True)
class SequenceKey:
    """One opening of one sequence."""

    sequence_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Resync:
    """Sequences that the draft cannot follow (unknown, a gap, an impossible token): open them again."""

    keys: tuple[SequenceKey, ...]


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The draft could not allocate memory in a forward pass; it lives on without the caches of its sequences."""


@dataclass(frozen=True, slots=True)
class Closing:
    """Sequences the draft forgets, freeing their cache."""

    sequence_ids: tuple[int, ...]
    reason: str
    last_committed: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """By sequence id, what no verdict tells any more because it ended the sequence. Not on the wire: only proposers in
    the target's process learn from texts that are over."""


DraftMessage = Hello | tuple[Proposal, ...] | Resync | Exhausted
"""A tuple without proposals says: alive, still reading a prompt."""
SequenceMessage = Opening | tuple[SequenceVerdict, ...] | Closing
TargetMessage = Welcome | Refused | SequenceMessage

"""One sequence as the target's session sees it: what is committed, what was asked, what was answered."""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Protocol

from replicas.speculation.messages import Opening, Proposal
from replicas.speculation.tree import Draft

REMEMBERED_ROUNDS = 8
"""Questions whose late answers still count as samples of the round time."""


class DrawCheck(Protocol):
    """Draws again what a draft says it drew."""

    def __call__(self, opening: Opening, proposal: Proposal) -> bool:
        """Whether every token is the one that its distribution gives with the noise that is the draft's to use."""


class ItemFit(Enum):
    """How a proposal fits its sequence."""

    FRESH = auto()
    STALE = auto()
    DUPLICATE = auto()
    WRONG = auto()


class Tracked:
    """A sequence that was opened by the engine.

    `epoch` is the session's own: it rises with every (re-)opening towards a draft and is unique among all
    sequences, so an answer to an earlier life, or to another sequence, never fits. 0 = never opened there.
    """

    __slots__ = (
        "_asked_rounds",
        "asked",
        "asked_at",
        "draft_length",
        "epoch",
        "is_primed",
        "is_told",
        "opening",
        "proposal",
        "quarantined_at",
        "token_ids",
        "told_length",
        "unanswered_since",
        "was_asked",
    )

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.token_ids = list(opening.token_ids)
        self.draft_length = opening.draft_length
        self.epoch = 0
        self.is_told = False
        self.told_length = 0
        """Committed tokens that the draft knows, where it was told."""
        self.was_asked = False
        """Something was asked of the draft in the round that was committed last."""
        self.is_primed = False
        """The draft has answered since it was told, so it has read the prompt."""
        self.quarantined_at: int | None = None
        """Committed tokens when the draft answered something impossible; it is not asked again."""
        self.asked = 0
        self.asked_at = 0.0
        self.unanswered_since: float | None = None
        self.proposal: Proposal | None = None
        self._asked_rounds: deque[tuple[int, float]] = deque(maxlen=REMEMBERED_ROUNDS)

    @property
    def is_quarantined(self) -> bool:
        return self.quarantined_at is not None

    @property
    def is_unanswered(self) -> bool:
        return self.asked > 0 and self.proposal is None

    def is_at(self, engine_epoch: int, base_length: int) -> bool:
        return self.opening.epoch == engine_epoch and len(self.token_ids) == base_length

    def commit(self, tokens: tuple[int, ...], draft_length: int) -> None:
        self.token_ids += tokens
        self.draft_length = draft_length
        self.proposal = None
        self.was_asked = self.asked > 0
        self.asked = 0

    def tell(self) -> tuple[int, tuple[int, ...]]:
        """What the draft does not know yet, behind so many tokens; now it does."""
        base, self.told_length = self.told_length, len(self.token_ids)
        return base, tuple(self.token_ids[base:])

    def ask(self, asked: int, now: float) -> None:
        self.asked = asked
        self.asked_at = now
        if asked == 0:
            self.unanswered_since = None
            return
        if self.unanswered_since is None:
            self.unanswered_since = now
        self._asked_rounds.append((len(self.token_ids), now))

    def examine(self, proposal: Proposal, vocab_size: int, was_drawn: DrawCheck | None) -> ItemFit:
        """Judge an item before anything of it is believed; `was_drawn` where acceptance is by rejection."""
        if proposal.epoch < self.epoch or not self.is_told:
            return ItemFit.STALE
        if proposal.epoch > self.epoch or proposal.base_length > len(self.token_ids):
            return ItemFit.WRONG
        if proposal.base_length < len(self.token_ids):
            return ItemFit.STALE
        if not self._is_usable(proposal, vocab_size, was_drawn):
            return ItemFit.WRONG
        return ItemFit.FRESH if self.proposal is None else ItemFit.DUPLICATE

    def _is_usable(self, proposal: Proposal, vocab_size: int, was_drawn: DrawCheck | None) -> bool:
        draft = Draft(proposal.token_ids, proposal.parents, proposal.distributions)
        if len(draft) > self.asked or draft.is_tree or not draft.is_sound(vocab_size):
            return False
        if was_drawn is None:
            return not draft.distributions
        return len(draft.distributions) == len(draft) and was_drawn(self.opening, proposal)

    def take_round_time(self, base_length: int, now: float) -> float | None:
        """Seconds from the question to this answer; None for the first, which includes reading the prompt."""
        self.unanswered_since = None
        was_primed, self.is_primed = self.is_primed, True
        asked_at = next((at for base, at in reversed(self._asked_rounds) if base == base_length), None)
        return now - asked_at if was_primed and asked_at is not None else None

    def forget_draft(self) -> None:
        """No draft knows this sequence any more."""
        self.is_told = False
        self.is_primed = False
        self.asked = 0
        self.unanswered_since = None
        self.proposal = None
        self._asked_rounds.clear()

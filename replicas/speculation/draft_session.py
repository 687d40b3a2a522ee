"""The draft's half of the verify session: what to run through the draft model next, and what to answer.

Sans-IO: the worker feeds messages in, runs the work that comes out, and sends what `outgoing` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from replicas.speculation.drafting import DraftedToken, Drafting, DraftWork
from replicas.speculation.messages import (
    Closing,
    DraftMessage,
    Exhausted,
    Opening,
    Resync,
    SequenceKey,
    SequenceMessage,
    SequenceVerdict,
)


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What the draft can take."""

    vocab_size: int
    max_model_len: int
    max_draft_tokens: int
    max_step_tokens: int
    """Tokens of one forward pass."""
    reading_tokens: int = 32
    """Prompt tokens read in a pass that others wait for; a sequence so far behind counts as reading."""
    lease_seconds: float = 120.0
    """A sequence without news for so long is forgotten: its closing was lost."""


class DraftSession:
    """All sequences that one target has opened at this draft."""

    def __init__(self, limits: DraftLimits, *, draft_ahead: bool, is_judged: bool = False) -> None:
        """`is_judged`: the target accepts by rejection and wants to know what tokens were drawn from."""
        self._limits = limits
        self._draft_ahead = draft_ahead
        self._is_judged = is_judged
        self._sequences: dict[int, Drafting] = {}
        self._released: list[int] = []
        self._lost: dict[int, int] = {}
        self._has_read = self._is_exhausted = False

    def __len__(self) -> int:
        return len(self._sequences)

    def receive(self, message: SequenceMessage, now: float) -> None:
        """Take in what the target sent; what does not fit is ignored, or asked for again."""
        match message:
            case Opening():
                self._open(message, now)
            case Closing():
                for sequence_id in message.sequence_ids:
                    self._release(sequence_id)
            case verdicts:
                for verdict in verdicts:
                    self._settle(verdict, now)

    def expire(self, now: float) -> None:
        """Forget the sequences that were not heard of for a whole lease."""
        for sequence_id, drafting in list(self._sequences.items()):
            if now - drafting.touched_at > self._limits.lease_seconds:
                self._release(sequence_id)

    def take_released(self) -> list[int]:
        """Ids whose cache can be freed, each once."""
        released, self._released = self._released, []
        return released

    def next_work(self) -> list[DraftWork]:
        """One forward pass: first who owes a proposal, with a bounded share of reading; else drafting ahead."""
        owing = [drafting for drafting in self._sequences.values() if drafting.is_owing and not drafting.is_complete]
        if not owing and self._draft_ahead:
            ahead = [drafting for drafting in self._sequences.values() if drafting.look_ahead()]
            return self._pack(ahead, self._limits.max_step_tokens)
        in_step = [drafting for drafting in owing if drafting.backlog <= self._limits.reading_tokens]
        reading = [drafting for drafting in owing if drafting.backlog > self._limits.reading_tokens]
        share = self._limits.reading_tokens if in_step else self._limits.max_step_tokens
        return self._pack(in_step, self._limits.max_step_tokens) + self._pack(reading, share)

    def record(self, work: DraftWork, drafted: DraftedToken | None) -> None:
        """A piece of work was run; `drafted` is None where it did not sample."""
        drafting = self._sequences.get(work.sequence_id)
        if drafting is not None:
            drafting.record(work, drafted)
            self._has_read |= drafted is None

    def refuse(self, sequence_id: int) -> None:
        """The cache has no room (left) for a sequence; whatever it held is gone."""
        drafting = self._sequences.get(sequence_id)
        if drafting is not None:
            drafting.refuse()

    def run_out_of_memory(self) -> None:
        """A forward pass could not allocate; the target is to know."""
        self._is_exhausted = True

    def outgoing(self, now: float) -> list[DraftMessage]:
        """Everything there is to say: complete proposals in one frame, sequences that must be opened again."""
        messages: list[DraftMessage] = []
        proposals = tuple(d.propose(now) for d in self._sequences.values() if d.is_owing and d.is_complete)
        if proposals or self._has_read:
            messages.append(proposals)
        if self._lost:
            messages.append(Resync(tuple(SequenceKey(key, epoch) for key, epoch in self._lost.items())))
        if self._is_exhausted:
            messages.append(Exhausted())
        self._has_read = self._is_exhausted = False
        self._lost.clear()
        return messages

    def _pack(self, draftings: Sequence[Drafting], budget: int) -> list[DraftWork]:
        works = []
        for drafting in draftings:
            if budget < 1:
                break
            work = drafting.work(budget, draft_ahead=self._draft_ahead)
            budget -= len(work.token_ids)
            works.append(work)
        return works

    def _open(self, opening: Opening, now: float) -> None:
        known = self._sequences.get(opening.sequence_id)
        if known is not None and opening.epoch <= known.opening.epoch:
            return
        self._release(opening.sequence_id)
        if not self._is_usable(opening):
            self._lost[opening.sequence_id] = opening.epoch
            return
        asked = min(opening.draft_length, self._limits.max_draft_tokens)
        self._sequences[opening.sequence_id] = Drafting(
            replace(opening, sampling=replace(opening.sampling, logprobs=None, prompt_logprobs=False)),
            context_limit=self._limits.max_model_len,
            asked=asked,
            asked_at=now,
            touched_at=now,
            is_judged=self._is_judged,
            is_owing=asked > 0,
            output=list(opening.token_ids[opening.prompt_length :]),
        )

    def _settle(self, verdict: SequenceVerdict, now: float) -> None:
        drafting = self._sequences.get(verdict.sequence_id)
        if drafting is not None and (
            verdict.epoch < drafting.opening.epoch
            or (verdict.epoch == drafting.opening.epoch and verdict.base_length < drafting.committed_length)
        ):
            return
        fits = (
            drafting is not None
            and verdict.epoch == drafting.opening.epoch
            and verdict.base_length == drafting.committed_length
            and self._are_tokens(verdict.committed)
        )
        if drafting is None or not fits:
            self._release(verdict.sequence_id)
            self._lost[verdict.sequence_id] = verdict.epoch
            return
        drafting.settle(verdict.committed, min(verdict.next_draft_length, self._limits.max_draft_tokens), now)

    def _release(self, sequence_id: int) -> None:
        """Forget a sequence; the room it leaves gives the refused ones another chance."""
        if self._sequences.pop(sequence_id, None) is None:
            return
        self._released.append(sequence_id)
        for drafting in self._sequences.values():
            drafting.is_refused = False

    def _is_usable(self, opening: Opening) -> bool:
        return 1 <= opening.prompt_length <= len(opening.token_ids) and self._are_tokens(opening.token_ids)

    def _are_tokens(self, token_ids: Sequence[int]) -> bool:
        return all(0 <= token < self._limits.vocab_size for token in token_ids)

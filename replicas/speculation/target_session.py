"""The target's half of the verify session: what is asked of the draft, what is believed of its answers.

Sans-IO: calls with times in, messages out. All sending happens in `open`, `settle` and `close`; whatever the
draft sends only changes what is known, so that a broken draft cannot make the target talk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from fleet.errors import ProtocolViolation
from replicas.speculation import breaker as breakers
from replicas.speculation.breaker import Breaker, BreakerEvent, BreakerState
from replicas.speculation.messages import (
    PROTOCOL_VERSION,
    Closing,
    DraftMessage,
    Exhausted,
    Hello,
    Opening,
    Proposal,
    Refused,
    Resync,
    SequenceKey,
    SequenceVerdict,
    TargetMessage,
    Welcome,
)
from replicas.speculation.pairing import Identity, find_mismatch
from replicas.speculation.proposer import ProposerHealth, ProposerState, Want
from replicas.speculation.round_timer import RoundTimer
from replicas.speculation.tracked import DrawCheck, ItemFit, Tracked

SMOOTHING = 1 / 8
HELD_TOKENS = 32
"""While nothing is asked for a sequence, its tokens are told so many at a time: often enough to keep its lease."""


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """Who the target is and how long its rounds may wait."""

    identity: Identity
    deadline_floor_seconds: float
    deadline_ceiling_seconds: float
    draft_ahead: bool = False
    was_drawn: DrawCheck | None = None
    """Where acceptance is by rejection, which holds only for tokens drawn as the draft says."""


@dataclass(slots=True)
class SessionCounters:
    """What happened on the way to drafts and back since the start; `fleet/metrics.py` says the same to users."""

    rounds: int = 0
    """Rounds of single sequences whose proposal arrived in time or was late."""
    late: int = 0
    """Proposals that were waited for in vain."""
    stale: int = 0
    """Proposals that came when nobody wanted them any more, or twice."""
    wrong: int = 0
    """Items with impossible tokens, counts, positions or distributions; each quarantines its sequence."""
    reopened: int = 0
    """Sequences that a draft had to be told anew, as it had lost them or was not heard."""
    refused_drafts: int = 0
    breaker_openings: int = 0
    """Times that a draft was left alone, being late or silent too often."""
    out_of_memory: int = 0
    """Forward passes of the draft that could not allocate."""


class TargetSession:
    """All sequences that one target lets drafts work on, across the drafts that come and go."""

    def __init__(self, settings: TargetSettings) -> None:
        self.counters = SessionCounters()
        self._settings = settings
        self._draft: Hello | None = None
        self._sequences: dict[int, Tracked] = {}
        self._epochs = count(1)
        self._to_close: set[int] = set()
        self._breaker = Breaker()
        self._timer = self._new_timer()
        self._heard_at = 0.0
        self._has_erred = False
        self._draft_seconds = 0.0
        self._wire_seconds = 0.0
        self._step_seconds: float | None = None
        """Of the target, from the end of the waiting to the verdicts. It falls at once and rises slowly: a step with a
        prompt does not set the pace."""
        self._collected_at: float | None = None

    # From the draft.

    def greet(self, hello: Hello, now: float) -> Welcome | Refused:
        """Take a draft on, or refuse it with the reason. Running sequences reach it with their next verdict."""
        reason = find_mismatch(self._settings.identity, hello)
        if reason is not None:
            self.counters.refused_drafts += 1
            return Refused(reason)
        self.lose()
        self._draft = hello
        self._heard_at = now
        identity = self._settings.identity
        return Welcome(PROTOCOL_VERSION, identity.model, self._settings.draft_ahead, identity.wants_distributions)

    def lose(self) -> None:
        """The draft is gone, and with it all that it knew; decode on alone."""
        self._draft = None
        self._breaker = Breaker()
        self._timer = self._new_timer()
        self._to_close.clear()
        for sequence in self._sequences.values():
            sequence.forget_draft()

    def receive(self, message: DraftMessage, now: float) -> None:
        """Take in what the draft sent. Raises ProtocolViolation when its session must end."""
        self._heard_at = now
        match message:
            case Hello():
                raise ProtocolViolation("a second Hello in one session")
            case Resync(keys):
                for key in keys:
                    self._note_lost(key)
            case Exhausted():
                self.counters.out_of_memory += 1
            case proposals:
                for proposal in proposals:
                    self._take(proposal, now)

    # From the engine.

    def open(self, opening: Opening, now: float) -> list[TargetMessage]:
        known = self._sequences.get(opening.sequence_id)
        if known is not None and opening.epoch <= known.opening.epoch:
            return []
        sequence = Tracked(opening)
        if known is not None and known.is_told:
            self._to_close.add(opening.sequence_id)
        self._sequences[opening.sequence_id] = sequence
        if not self._is_talking:
            return []
        return [*self._closings("replaced"), self._open_at_draft(sequence, now)]

    def settle(self, verdicts: Sequence[SequenceVerdict], now: float) -> list[TargetMessage]:
        """Commit what the target decided, and bring the draft up to date."""
        self._resume_after_pause(now)
        self._note_step(now)
        known = [(self._sequences[v.sequence_id], v) for v in verdicts if self._commit(v)]
        if not self._is_talking:
            return []
        messages: list[TargetMessage] = [*self._closings("quarantined or lost")]
        items = []
        for sequence, verdict in known:
            if sequence.is_quarantined:
                continue
            if not sequence.is_told:
                messages.append(self._open_at_draft(sequence, now))
            elif not _can_wait(sequence):
                items.append(self._verdict_at_draft(sequence, verdict, now))
        return [*messages, tuple(items)] if items else messages

    def close(self, closing: Closing) -> list[TargetMessage]:
        for sequence_id in closing.sequence_ids:
            sequence = self._sequences.pop(sequence_id, None)
            if sequence is not None and sequence.is_told:
                self._to_close.add(sequence_id)
        return self._closings(closing.reason) if self._is_talking else []

    def wait_until(self, wants: Sequence[Want], now: float) -> float | None:
        """The moment until which it is worth waiting for proposals; None = take what is there."""
        asked = [sequence.asked_at for sequence, _ in self._wanted(wants) if self._is_expected(sequence)]
        if not asked:
            return None
        until = max(asked) + self._timer.budget(self._step_seconds)
        return until if until > now else None

    def collect(self, wants: Sequence[Want], now: float) -> dict[int, Proposal]:
        """End the waiting: the proposals by sequence id, in the engine's epochs.

        An empty proposal means that nothing was to be expected; a missing one was late or wrong, or nobody is asked.
        """
        answers: dict[int, Proposal] = {}
        arrived = late = 0
        for sequence, want in self._wanted(wants):
            if sequence.proposal is not None:
                arrived += 1
                answers[want.sequence_id] = _for_engine(sequence.proposal, want)
            elif self._is_expected(sequence):
                late += 1
            elif self._is_talking and sequence.quarantined_at != want.base_length:
                answers[want.sequence_id] = Proposal(want.sequence_id, want.epoch, want.base_length, ())
        self._collected_at = now
        self.counters.late += late
        self._judge_round(arrived, late, now)
        return answers

    def state(self) -> ProposerState:
        if self._draft is None:
            health = ProposerHealth.LOST
        elif self._breaker.state is BreakerState.CLOSED:
            health = ProposerHealth.HEALTHY
        else:
            health = ProposerHealth.DEGRADED
        return ProposerState(health.value, self._draft_seconds, self._wire_seconds, self.counters.out_of_memory)

    @property
    def _is_talking(self) -> bool:
        return self._draft is not None and not self._breaker.is_open

    def _new_timer(self) -> RoundTimer:
        return RoundTimer(self._settings.deadline_floor_seconds, self._settings.deadline_ceiling_seconds)

    def _wanted(self, wants: Sequence[Want]) -> Iterator[tuple[Tracked, Want]]:
        for want in wants:
            sequence = self._sequences.get(want.sequence_id)
            if sequence is not None and sequence.is_at(want.epoch, want.base_length):
                yield sequence, want

    def _is_expected(self, sequence: Tracked) -> bool:
        """A sequence whose prompt the draft still reads is not waited for: it would hold up all the others."""
        return self._is_talking and sequence.is_primed and sequence.is_unanswered

    def _commit(self, verdict: SequenceVerdict) -> bool:
        sequence = self._sequences.get(verdict.sequence_id)
        if sequence is None or not sequence.is_at(verdict.epoch, verdict.base_length):
            return False
        sequence.commit(verdict.committed, verdict.next_draft_length)
        return True

    def _open_at_draft(self, sequence: Tracked, now: float) -> Opening:
        self.counters.reopened += sequence.epoch > 0
        sequence.epoch = next(self._epochs)
        sequence.is_told = True
        sequence.tell()
        asked = self._ask(sequence, now)
        return replace(sequence.opening, epoch=sequence.epoch, token_ids=tuple(sequence.token_ids), draft_length=asked)

    def _verdict_at_draft(self, sequence: Tracked, verdict: SequenceVerdict, now: float) -> SequenceVerdict:
        base_length, committed = sequence.tell()
        return SequenceVerdict(
            sequence_id=verdict.sequence_id,
            epoch=sequence.epoch,
            base_length=base_length,
            accepted=verdict.accepted,
            committed=committed,
            next_draft_length=self._ask(sequence, now),
        )

    def _ask(self, sequence: Tracked, now: float) -> int:
        """Tokens asked for next: what the engine wants, within the draft's own limits."""
        if self._draft is None:
            return 0
        room = self._draft.max_model_len - len(sequence.token_ids)
        asked = max(0, min(sequence.draft_length, self._draft.max_draft_tokens, room))
        sequence.ask(asked, now)
        return asked

    def _closings(self, reason: str) -> list[TargetMessage]:
        if not self._to_close:
            return []
        closing = Closing(tuple(sorted(self._to_close)), reason)
        self._to_close.clear()
        return [closing]

    def _note_lost(self, key: SequenceKey) -> None:
        sequence = self._sequences.get(key.sequence_id)
        if sequence is not None and sequence.epoch == key.epoch:
            sequence.forget_draft()

    def _take(self, proposal: Proposal, now: float) -> None:
        sequence = self._sequences.get(proposal.sequence_id)
        if sequence is None or sequence.is_quarantined:
            self.counters.stale += 1
            return
        fit = sequence.examine(proposal, self._settings.identity.vocab_size, self._settings.was_drawn)
        if fit in (ItemFit.FRESH, ItemFit.STALE) and proposal.epoch == sequence.epoch:
            self._learn(sequence.take_round_time(proposal.base_length, now), proposal)
        match fit:
            case ItemFit.FRESH:
                sequence.proposal = proposal
            case ItemFit.STALE | ItemFit.DUPLICATE:
                self.counters.stale += 1
            case ItemFit.WRONG:
                self._quarantine(sequence)

    def _learn(self, round_seconds: float | None, proposal: Proposal) -> None:
        if round_seconds is None:
            return
        self._timer.observe(round_seconds)
        drafting = min(max(0.0, proposal.draft_seconds), round_seconds)
        self._draft_seconds += SMOOTHING * (drafting - self._draft_seconds)
        self._wire_seconds += SMOOTHING * (round_seconds - drafting - self._wire_seconds)

    def _quarantine(self, sequence: Tracked) -> None:
        self.counters.wrong += 1
        self._has_erred = True
        self._to_close.add(sequence.opening.sequence_id)
        sequence.forget_draft()
        sequence.quarantined_at = len(sequence.token_ids)

    def _note_step(self, now: float) -> None:
        if self._collected_at is None:
            return
        seconds, self._collected_at = now - self._collected_at, None
        known = self._step_seconds
        self._step_seconds = seconds if known is None else min(seconds, known + SMOOTHING * (seconds - known))

    def _judge_round(self, arrived: int, late: int, now: float) -> None:
        if not self._is_talking:
            return
        if not arrived and self._is_silent(now):
            self._advance_breaker(BreakerEvent.DRAFT_SILENT, now)
        elif late or self._has_erred:
            self._advance_breaker(BreakerEvent.ROUND_LATE, now)
        elif arrived:
            self._advance_breaker(BreakerEvent.ROUND_IN_TIME, now)
        self.counters.rounds += arrived + late
        self._has_erred = False

    def _is_silent(self, now: float) -> bool:
        owed = [s.unanswered_since for s in self._sequences.values() if s.unanswered_since is not None]
        return bool(owed) and now - max(self._heard_at, min(owed)) > self._settings.deadline_ceiling_seconds

    def _advance_breaker(self, event: BreakerEvent, now: float) -> None:
        was_open = self._breaker.is_open
        self._breaker = breakers.advance(self._breaker, event, now)
        if self._breaker.is_open and not was_open:
            self.counters.breaker_openings += 1
            self._stop_talking()

    def _stop_talking(self) -> None:
        """Whoever may be frozen gets no more mail; it learns everything anew when the breaker lets it try."""
        for sequence_id, sequence in self._sequences.items():
            if sequence.is_told:
                self._to_close.add(sequence_id)
            sequence.forget_draft()

    def _resume_after_pause(self, now: float) -> None:
        if self._breaker.is_open and now >= self._breaker.retry_at:
            self._heard_at = now
            self._advance_breaker(BreakerEvent.PAUSE_ELAPSED, now)


def _can_wait(sequence: Tracked) -> bool:
    """Whether what was committed can be told later: a message for each token is work for nothing on both sides."""
    untold = len(sequence.token_ids) - sequence.told_length
    return not sequence.was_asked and sequence.draft_length == 0 and untold < HELD_TOKENS


def _for_engine(proposal: Proposal, want: Want) -> Proposal:
    """The proposal under the engine's epoch, and no longer than the engine wants it now."""
    return Proposal(
        sequence_id=proposal.sequence_id,
        epoch=want.epoch,
        base_length=proposal.base_length,
        token_ids=proposal.token_ids[: want.max_tokens],
        draft_seconds=proposal.draft_seconds,
        was_ready=proposal.was_ready,
        distributions=proposal.distributions[: want.max_tokens],
    )

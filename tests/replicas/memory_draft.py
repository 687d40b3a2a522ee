"""A draft worker without threads or sockets, as a `Proposer`: both sessions, the codec, and a real draft engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from replicas.draft_engine import DraftEngine
from replicas.engine.judging import was_drawn
from replicas.engine.model import Model
from replicas.engine.sampling import Sampler
from replicas.speculation.draft_session import DraftLimits, DraftSession
from replicas.speculation.messages import (
    PROTOCOL_VERSION,
    Closing,
    Hello,
    Opening,
    Proposal,
    SequenceVerdict,
    TargetMessage,
    Welcome,
)
from replicas.speculation.pairing import Identity
from replicas.speculation.proposer import ProposerState, Want
from replicas.speculation.target_session import SessionCounters, TargetSession, TargetSettings
from replicas.verify_rpc import verify_pb2 as pb
from replicas.verify_rpc.codec import draft_frame, draft_message_from, target_frame, target_message_from
from tests.fakes import ManualClock

MOST_TOKENS = 8
Lie = Callable[[Proposal], Proposal]


class MemoryDraft:
    """Answers every question in time; `lie` says something else in the draft's name."""

    def __init__(
        self,
        model: Model,
        sampler: Sampler,
        *,
        is_judged: bool = False,
        draft_ahead: bool = False,
        vocab_size: int,
        lie: Lie | None = None,
    ) -> None:
        self.engine = DraftEngine(model, sampler)
        self._clock = ManualClock()
        identity = Identity("target", "hash", vocab_size, 100_000, wants_distributions=is_judged)
        self.target = TargetSession(
            TargetSettings(identity, 0.02, 0.5, draft_ahead, was_drawn if is_judged else None),
        )
        self._limits = DraftLimits(vocab_size, model.max_model_len, MOST_TOKENS, 64, reading_tokens=8)
        self._lie = lie
        self._mail: list[TargetMessage] = []
        self.proposed = 0
        """Tokens that reached the engine."""
        self.ready = 0
        """Proposals that were there before they were asked for."""
        self.connect()

    def connect(self) -> None:
        """A new draft process, which knows nothing, takes the place of the last one."""
        self._mail.clear()
        self.engine.release_all()
        limits = self._limits
        hello = Hello(PROTOCOL_VERSION, "hash", limits.vocab_size, "draft", "", limits.max_model_len, MOST_TOKENS, True)
        answer = self.target.greet(hello, self._now)
        assert isinstance(answer, Welcome)
        self.draft = DraftSession(limits, draft_ahead=answer.draft_ahead, is_judged=answer.wants_distributions)

    @property
    def counters(self) -> SessionCounters:
        return self.target.counters

    def open(self, opening: Opening) -> None:
        self._mail += self.target.open(opening, self._now)

    def propose(self, wants: Sequence[Want]) -> Mapping[int, Proposal]:
        self.exchange()
        proposals = self.target.collect(wants, self._now)
        self.proposed += sum(len(proposal.token_ids) for proposal in proposals.values())
        self.ready += sum(proposal.was_ready for proposal in proposals.values())
        return proposals

    def settle(self, verdicts: Sequence[SequenceVerdict]) -> None:
        self._mail += self.target.settle(verdicts, self._now)

    def close(self, closing: Closing) -> None:
        self._mail += self.target.close(closing)

    def state(self) -> ProposerState:
        return self.target.state()

    def exchange(self) -> None:
        """Deliver the target's mail, let the draft work until it has nothing to do, and deliver its answers."""
        for message in self._mail:
            frame = pb.TargetFrame.FromString(target_frame(message).SerializeToString())
            self.draft.receive(target_message_from(frame), self._now)  # type: ignore[arg-type]  # no Welcome in here
        self._mail.clear()
        self.engine.release(self.draft.take_released())
        self._answer()
        while works := self.draft.next_work():
            run = self.engine.run(works)
            for sequence_id in run.refused:
                self.draft.refuse(sequence_id)
            for work, drafted in run.done:
                self.draft.record(work, drafted)
            self._answer()

    @property
    def _now(self) -> float:
        self._clock.advance(0.001)
        return self._clock.monotonic()

    def _answer(self) -> None:
        for message in self.draft.outgoing(self._now):
            if self._lie is not None and isinstance(message, tuple):
                message = tuple(map(self._lie, message))
            frame = pb.DraftFrame.FromString(draft_frame(message).SerializeToString())
            self.target.receive(draft_message_from(frame), self._now)

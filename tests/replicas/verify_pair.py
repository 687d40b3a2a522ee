"""Target and draft sessions joined in memory by a network that can be made bad, around two toy models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from fleet.generation import SamplingParams
from replicas.engine.judging import was_drawn
from replicas.speculation.acceptance import accept
from replicas.speculation.draft_session import DraftLimits, DraftSession
from replicas.speculation.drafting import DraftedToken, DraftWork
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
from replicas.speculation.proposer import Want
from replicas.speculation.rejection import Sparse
from replicas.speculation.target_session import TargetSession, TargetSettings
from replicas.speculation.tree import Draft
from replicas.verify_rpc.codec import draft_frame, draft_message_from, target_frame, target_message_from
from tests.fakes import ManualClock

VOCABULARY = 50
IDENTITY = Identity("target", "hash", VOCABULARY, 4096)
HELLO = Hello(PROTOCOL_VERSION, "hash", VOCABULARY, "draft", "", 4096, 8, names_distributions=True)
SETTINGS = TargetSettings(IDENTITY, deadline_floor_seconds=0.02, deadline_ceiling_seconds=0.5)
JUDGING_SETTINGS = replace(SETTINGS, identity=replace(IDENTITY, wants_distributions=True), was_drawn=was_drawn)
LIMITS = DraftLimits(VOCABULARY, 4096, 8, 64, reading_tokens=8)
GREEDY = SamplingParams(seed=1, max_tokens=10_000, temperature=0.0)
HOP_SECONDS = 0.001

Fault = Callable[[object], list[object]]
"""What becomes of one message: nothing, itself, several, or something else."""


def next_token(text: Sequence[int]) -> int:
    """The target's model: the whole text decides."""
    digest = hashlib.blake2b(bytes(text), digest_size=2).digest()
    return int.from_bytes(digest, "big") % VOCABULARY


def likely_token(text: Sequence[int]) -> int:
    """The draft's model: right about three times in four."""
    token = next_token(text)
    return (token + 1) % VOCABULARY if (token + len(text)) % 4 == 0 else token


def opening(sequence_id: int, prompt: Sequence[int] = (1, 2, 3), draft_length: int = 4, epoch: int = 1) -> Opening:
    tokens = (*prompt, next_token(prompt))
    return Opening(sequence_id, epoch, tokens, len(prompt), GREEDY, 0, draft_length)


def written(prompt: Sequence[int], length: int) -> list[int]:
    """What the target writes on its own: prompt and continuation, `length` tokens in all."""
    text = list(prompt)
    while len(text) < length:
        text.append(next_token(text))
    return text


@dataclass
class ToyEngine:
    """The draft's cache and model. The model sees only what the cache holds, so a wrong rollback shows."""

    model: Callable[[Sequence[int]], int] = likely_token
    capacity: int = 1_000_000
    cached: dict[int, list[int]] = field(default_factory=dict)
    passes: int = 0

    @property
    def used_tokens(self) -> int:
        return sum(len(tokens) for tokens in self.cached.values())

    def run(self, session: DraftSession) -> bool:
        """One pass of whatever the session wants; False when it wants nothing."""
        for sequence_id in session.take_released():
            self.cached.pop(sequence_id, None)
        works = session.next_work()
        self.passes += bool(works)
        for work in works:
            cache = self.cached.setdefault(work.sequence_id, [])
            assert work.position <= len(cache), "the session skipped a token"
            cache[work.position :] = work.token_ids
            if self.used_tokens > self.capacity:
                del self.cached[work.sequence_id]
                session.refuse(work.sequence_id)
                continue
            assert cache == [*work.prompt_token_ids, *work.output_token_ids][: len(cache)]
            session.record(work, self._drafted(cache, work))
        return bool(works)

    def _drafted(self, cache: Sequence[int], work: DraftWork) -> DraftedToken | None:
        if not work.samples:
            return None
        token = self.model(cache)
        runner_up = (token - 1) % VOCABULARY if work.wants_runner_up else None
        return DraftedToken(token, runner_up, Sparse.certain(token) if work.names_distribution else None)


class Pair:
    """One target with its sequences, one draft, and a channel each way."""

    def __init__(self, *, draft_ahead: bool = False, is_judged: bool = False, engine: ToyEngine | None = None) -> None:
        """`is_judged`: acceptance by rejection. All is greedy, so that both rules accept alike."""
        self.clock = ManualClock()
        self.is_judged = is_judged
        self.target = TargetSession(JUDGING_SETTINGS if is_judged else SETTINGS)
        self.engine = engine or ToyEngine()
        self.draft_ahead = draft_ahead
        self.texts: dict[int, list[int]] = {}
        self.accepted: dict[int, list[int]] = {}
        self.to_draft: list[object] = []
        self.to_target: list[object] = []
        self.to_draft_fault: Fault = _deliver
        self.to_target_fault: Fault = _deliver
        self.is_frozen = False
        self.connect()

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def connect(self, hello: Hello = HELLO) -> None:
        """A new draft process dials."""
        self.to_draft, self.to_target = [], []
        self.engine.cached.clear()
        self.draft = DraftSession(LIMITS, draft_ahead=self.draft_ahead, is_judged=self.is_judged)
        assert isinstance(self.target.greet(hello, self.now), Welcome)

    def spoil(self, to_draft: Fault | None = None, to_target: Fault | None = None) -> None:
        """Send what follows over a bad network; without arguments over a good one again."""
        self.to_draft_fault = to_draft or _deliver
        self.to_target_fault = to_target or _deliver

    def open(self, sequence_id: int, prompt: Sequence[int] = (1, 2, 3), draft_length: int = 4) -> None:
        first = opening(sequence_id, prompt, draft_length)
        self.texts[sequence_id] = list(first.token_ids)
        self.accepted[sequence_id] = []
        self._tell(self.target.open(first, self.now))

    def close(self, *sequence_ids: int) -> None:
        for sequence_id in sequence_ids:
            del self.texts[sequence_id]
        self._tell(self.target.close(Closing(sequence_ids, "done")))

    def step(self, draft_length: int = 4) -> dict[int, Proposal]:
        """One engine step: wait for proposals, verify, commit."""
        wants = [Want(key, 1, len(text), draft_length) for key, text in self.texts.items()] if draft_length else []
        while (until := self.target.wait_until(wants, self.now)) is not None:
            if not self.exchange():
                self.clock.now = max(self.now, until)
        proposals = self.target.collect(wants, self.now)
        verdicts = [self._verify(key, proposals.get(key), draft_length) for key in self.texts]
        self.clock.advance(0.03)
        self._tell(self.target.settle(verdicts, self.now))
        self.exchange()
        return proposals

    def exchange(self) -> bool:
        """Deliver what is on its way and let the draft work until it has nothing to do; False = nothing moved."""
        moved = bool(self.to_draft or self.to_target)
        for message in self._take(self.to_draft) if not self.is_frozen else ():
            self.draft.receive(target_message_from(target_frame(message)), self.now)  # type: ignore[arg-type]
        self.clock.advance(HOP_SECONDS)
        self._answer()
        while not self.is_frozen and self.engine.run(self.draft):
            self._answer()
        for message in self._take(self.to_target):
            self.target.receive(draft_message_from(draft_frame(message)), self.now)  # type: ignore[arg-type]
        return moved

    def _answer(self) -> None:
        if not self.is_frozen:
            for message in self.draft.outgoing(self.now):
                self.to_target += self.to_target_fault(message)

    def _verify(self, sequence_id: int, proposal: Proposal | None, draft_length: int) -> SequenceVerdict:
        text = self.texts[sequence_id]
        drafted = proposal.token_ids if proposal else ()
        assert all(0 <= token < VOCABULARY for token in drafted)
        assert len(drafted) <= draft_length
        if proposal is not None:
            named = map(Sparse.certain, drafted) if self.is_judged else ()
            assert proposal.distributions == tuple(named)
        acceptance = accept(Draft(tuple(drafted)), [next_token([*text, *drafted[:n]]) for n in range(len(drafted) + 1)])
        verdict = SequenceVerdict(sequence_id, 1, len(text), acceptance.accepted, acceptance.committed, draft_length)
        text += acceptance.committed
        self.accepted[sequence_id].append(acceptance.accepted)
        return verdict

    def _tell(self, messages: Sequence[TargetMessage]) -> None:
        for message in messages:
            self.to_draft += self.to_draft_fault(message)

    @staticmethod
    def _take(channel: list[object]) -> Iterator[object]:
        while channel:
            yield channel.pop(0)


def _deliver(message: object) -> list[object]:
    return [message]

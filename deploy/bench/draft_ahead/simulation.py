"""How would target and draft work together on machines of their own? The draft's real session under a simulated clock.

Times are measured ones; which tokens agree is read from a recorded answer. Compared with the cost model for k drafted
tokens: a round takes T_v + k·T_d + RTT without drafting ahead. Drafted ahead at a hit rate h it takes
T_v + RTT + (1 - h)·k·T_d, as the verdict still has to travel to the draft and its answer back; a target that were sent
all outcomes beforehand would save the trip as well: T_v + (1 - h)·(k·T_d + RTT).
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.errors import ProtocolViolation
from fleet.generation import SamplingParams
from replicas.speculation.draft_session import DraftLimits, DraftSession
from replicas.speculation.drafting import DraftedToken, DraftWork
from replicas.speculation.messages import Opening, SequenceMessage, SequenceVerdict

SEQUENCE_ID = 1
EPOCH = 1
GREEDY = SamplingParams(seed=0, max_tokens=1, temperature=0.0)


@dataclass(frozen=True, slots=True)
class Trace:
    """A greedy answer with what the draft would have said behind each of its tokens."""

    prompt_length: int
    tokens: tuple[int, ...]
    """Prompt and answer."""
    first: tuple[int, ...]
    """The draft's choice behind tokens[: i + 1]; as many as tokens."""
    second: tuple[int, ...]
    """What it would have taken otherwise."""

    @property
    def answer_length(self) -> int:
        return len(self.tokens) - self.prompt_length


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds."""

    verify: tuple[float, ...]
    """A pass of the target over index + 1 rows."""
    draft: float
    """A pass of the draft."""
    round_trip: float
    """From target to draft and back."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One answer, after its first round: that one reads the prompt."""

    rounds: int
    tokens: int
    seconds: float
    hits: int
    """Rounds whose draft was complete when the verdict came."""

    @property
    def round_seconds(self) -> float:
        return self.seconds / self.rounds

    @property
    def hit_rate(self) -> float:
        return self.hits / self.rounds

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def simulate(trace: Trace, times: Times, draft_length: int, *, draft_ahead: bool) -> Outcome:
    """Write the answer of a trace, of more than 2 · (draft_length + 1) tokens, round by round."""
    draft = _Draft(trace, times, draft_length, draft_ahead=draft_ahead)
    committed, last = trace.prompt_length + 1, len(trace.tokens)
    message: SequenceMessage = Opening(
        SEQUENCE_ID, EPOCH, trace.tokens[:committed], trace.prompt_length, GREEDY, 0, draft_length
    )
    now = began = 0.0
    rounds = hits = start = 0
    while committed + draft_length < last:
        drafted, was_ready, sent_at = draft.answer(message, now + times.round_trip / 2)
        now = sent_at + times.round_trip / 2 + times.verify[len(drafted)]
        accepted = _agreeing(drafted, trace.tokens[committed:])
        tokens = trace.tokens[committed : committed + accepted + 1]
        message = (SequenceVerdict(SEQUENCE_ID, EPOCH, committed, accepted, tokens, draft_length),)
        committed += len(tokens)
        if start == 0:
            began, start = now, committed
        else:
            rounds, hits = rounds + 1, hits + was_ready
    return Outcome(rounds, committed - start, now - began, hits)


def serial_seconds(times: Times, draft_length: int) -> float:
    """The cost model of a round that does not draft ahead."""
    return times.verify[draft_length] + draft_length * times.draft + times.round_trip


def ahead_seconds(times: Times, draft_length: int, hit_rate: float, *, is_cached: bool = False) -> float:
    """The cost model of a round with draft-ahead; `is_cached`: the target holds the drafts of all outcomes."""
    drafting, trip = draft_length * times.draft, times.round_trip
    missed = (1 - hit_rate) * (drafting + trip) if is_cached else trip + (1 - hit_rate) * drafting
    return times.verify[draft_length] + missed


class _Draft:
    """The draft's machine: one pass at a time, each finished before news is looked at."""

    def __init__(self, trace: Trace, times: Times, draft_length: int, *, draft_ahead: bool) -> None:
        most = len(trace.tokens) + 2 * draft_length
        self._session = DraftSession(
            DraftLimits(max((*trace.tokens, *trace.first, *trace.second)) + 1, most, draft_length, most),
            draft_ahead=draft_ahead,
        )
        self._trace = trace
        self._times = times
        self._now = 0.0

    def answer(self, message: SequenceMessage, arrives_at: float) -> tuple[tuple[int, ...], bool, float]:
        """Draft ahead until the message arrives, then answer it: tokens, whether they were ready, and when."""
        while self._now < arrives_at and self._pass():
            pass
        self._now = max(self._now, arrives_at)
        self._session.receive(message, self._now)
        while True:
            for said in self._session.outgoing(self._now):
                if isinstance(said, tuple) and said:
                    return said[0].token_ids, said[0].was_ready, self._now
            if not self._pass():
                raise ProtocolViolation("the draft's session has nothing to answer")

    def _pass(self) -> bool:
        works = self._session.next_work()
        for work in works:
            self._session.record(work, self._drafted(work))
        self._now += self._times.draft if works else 0.0
        return bool(works)

    def _drafted(self, work: DraftWork) -> DraftedToken:
        """Off the trace it does not matter what is drafted: nothing of it will be accepted."""
        last = min(len(work.prompt_token_ids) + len(work.output_token_ids), len(self._trace.tokens)) - 1
        return DraftedToken(self._trace.first[last], self._trace.second[last] if work.wants_runner_up else None)


def _agreeing(drafted: tuple[int, ...], tokens: tuple[int, ...]) -> int:
    pairs = zip(drafted, tokens, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(drafted), len(tokens)))

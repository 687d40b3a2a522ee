"""What was measured: one record per request and block, and each request's latencies by the one definition."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.traffic import Outcome
from router.stopwatch import Stopwatch

_BAD = (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.TRUNCATED, Outcome.SHED)


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    """One request of a block. It holds no text: what was asked and answered may be anybody's."""

    index: int
    """Its place among the measured requests of the block; the same request has the same place in every arm."""
    category: str
    outcome: Outcome
    send_delay: float
    """Seconds from when it was due to when it was sent."""
    chunks: tuple[tuple[float, int], ...]
    """(seconds since it was due, tokens) of every piece of the answer."""
    prompt_tokens: int
    drafted: int
    accepted: int
    rounds_by_accepted: tuple[int, ...]
    """How many verify rounds accepted 0, 1, … drafted tokens."""
    queue_seconds: float | None
    fallbacks: int
    """How often a replica lost it and it went on elsewhere: on the stable path, or there on another replica."""
    answer_digest: str
    is_degenerate: bool

    @property
    def is_moved(self) -> bool:
        """A replica lost it, so that nobody knows which path brought which of its tokens."""
        return self.fallbacks > 0

    @property
    def is_done(self) -> bool:
        """Completed by the replica that began it."""
        return self.outcome is Outcome.DONE and not self.is_moved

    @property
    def is_bad(self) -> bool:
        """Failed, timed out, cut short, turned away, or lost by a replica, however well it ended elsewhere."""
        return self.outcome in _BAD or self.is_moved

    @property
    def has_drafts(self) -> bool:
        """Something was drafted for it, all of it by its own path."""
        return self.drafted > 0 and not self.is_moved

    @property
    def output_tokens(self) -> int:
        return sum(tokens for _, tokens in self.chunks)


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """What the server says of the block's path meanwhile; None is not known."""

    kv_usage: float | None = None
    """Highest share of the KV cache in use."""
    preemptions: int | None = None
    draft_seconds: float | None = None
    """Mean per verify round, as is `wire_seconds`; `verify_seconds` is per target step."""
    verify_seconds: float | None = None
    wire_seconds: float | None = None
    rounds: int | None = None
    empty_rounds: int | None = None
    late_rounds: int | None = None
    memory_bytes: int | None = None
    """Most host memory (resident) of the path's processes together, where they run on this machine."""
    accept_seconds: float | None = None
    """The part of `verify_seconds` after the forward pass: sampling and accepting."""
    gpu_memory_bytes: int | None = None
    """Most that the path's target processes have had allocated on GPUs since they began; not a draft worker's."""

    @property
    def drafting_share(self) -> float:
        """Share of the rounds that had a draft; 1 where the server does not count those without."""
        if not self.rounds or self.empty_rounds is None:
            return 1.0
        return self.rounds / (self.rounds + self.empty_rounds)


@dataclass(frozen=True, slots=True)
class MeasuredBlock:
    """One arm for one round of one condition, without its warm-up and cool-down."""

    condition: str
    round: int
    arm: str
    seconds: float
    """The whole block, warm-up included."""
    window_seconds: float
    """From when the first measured request was due until the last one ended, under full load."""
    window_tokens: int
    """Output tokens that arrived in the window, of all requests, warm-up and cool-down included, but those that a
    replica lost: other paths brought a part of theirs."""
    window_completed: int
    client_lag: float
    """95th percentile of how late the client's event loop woke up, in seconds."""
    server: ServerFigures
    requests: tuple[MeasuredRequest, ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """The latencies of one request in seconds, from when it was due, as `router.stopwatch` defines them."""

    ttft: float | None
    tpot: float | None
    e2e: float | None
    e2e_from_sent: float | None
    """What a client that forgets its own waiting would report."""
    stall: float | None
    tokens_per_chunk: float | None
    itl: tuple[float, ...]
    gaps: tuple[float, ...]

    @classmethod
    def of(cls, request: MeasuredRequest) -> Timing:
        watch = Stopwatch(0.0)
        laps = [watch.lap(at, tokens) for at, tokens in request.chunks]
        return cls(
            ttft=watch.ttft,
            tpot=watch.tpot,
            e2e=watch.e2e,
            e2e_from_sent=None if watch.e2e is None else watch.e2e - request.send_delay,
            stall=watch.stall,
            tokens_per_chunk=watch.tokens_per_chunk,
            itl=tuple(value for lap in laps for value in lap.itl),
            gaps=tuple(lap.gap for lap in laps if lap.gap is not None),
        )

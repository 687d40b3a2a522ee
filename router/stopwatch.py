"""What was a stream's latency? The one definition of every latency metric, from the times and sizes of its chunks.

The load tool measures with the same class, so that a benchmark and a guardrail never disagree about a word.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

ITL_TOKENS = 8
"""Tokens that one `itl` value looks back over; 1 gives the classic inter-token latency."""
READER_SECONDS_PER_TOKEN = 0.020
"""Pace of the reader by whose waiting `stall` is measured."""


@dataclass(frozen=True, slots=True)
class Lap:
    """What one chunk adds to the metrics, in seconds."""

    gap: float | None
    """Time since the previous chunk; None for the first."""
    itl: tuple[float, ...]
    """One value per token; empty for the first chunk, whose latency is `ttft`."""


_FIRST_LAP = Lap(None, ())


@dataclass(slots=True)
class Stopwatch:
    """One stream, from the acceptance of its request to its last token. All times are monotonic seconds.

    With chunks i = 1…m that arrive at t_i and carry n_i ≥ 1 tokens, N = Σ n_i, and the request accepted at t_0:

    - `ttft` = t_1 − t_0
    - `tpot` = (t_m − t_1) / (N − n_1)
    - `gap` of chunk i > 1 = t_i − t_(i−1)
    - `itl` of token j outside the first chunk = (T_j − T_(j−k)) / k, with T_j the arrival of the chunk that
      carries token j, and k = min(itl_tokens, j − 1)
    - `stall` = share of time in which a reader waits who begins at t_1 and takes 20 ms for each token
    - `e2e` = t_m − t_0
    - `tokens_per_chunk` = N / m

    A speculative step takes longer than a plain one and brings several tokens, so `gap` rises even where the reader
    is served faster; `itl` is what is compared between paths.
    """

    accepted_at: float
    itl_tokens: int = ITL_TOKENS
    first_at: float | None = None
    last_at: float | None = None
    first_tokens: int = 0
    tokens: int = 0
    chunks: int = 0
    _recent: deque[float] = field(init=False)
    """Arrivals of the last `itl_tokens` tokens."""
    _read_until: float = 0.0
    _starved_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._recent = deque(maxlen=self.itl_tokens)

    def lap(self, at: float, tokens: int) -> Lap:
        """Note a chunk of `tokens` ≥ 1 that arrived at `at`, not earlier than the one before."""
        self._read(at, tokens)
        recent = self._recent
        previous, self.last_at = self.last_at, at
        self.tokens += tokens
        self.chunks += 1
        if previous is None:
            self.first_at, self.first_tokens = at, tokens
            recent.extend([at] * min(tokens, self.itl_tokens))
            return _FIRST_LAP
        itl = []
        for _ in range(tokens):
            itl.append((at - recent[0]) / len(recent))
            recent.append(at)
        return Lap(at - previous, tuple(itl))

    def open_gap(self, now: float) -> float:
        """Seconds since the last chunk, or since the request was accepted."""
        return now - (self.accepted_at if self.last_at is None else self.last_at)

    def itl_so_far(self, now: float) -> float | None:
        """A lower bound for the `itl` of the token that is still awaited; None before the first chunk."""
        return (now - self._recent[0]) / len(self._recent) if self._recent else None

    @property
    def ttft(self) -> float | None:
        return None if self.first_at is None else self.first_at - self.accepted_at

    @property
    def tpot(self) -> float | None:
        """None where every token came in the first chunk."""
        if self.first_at is None or self.last_at is None or self.tokens == self.first_tokens:
            return None
        return (self.last_at - self.first_at) / (self.tokens - self.first_tokens)

    @property
    def e2e(self) -> float | None:
        return None if self.last_at is None else self.last_at - self.accepted_at

    @property
    def stall(self) -> float | None:
        if self.first_at is None:
            return None
        return self._starved_seconds / (self._read_until - self.first_at)

    def stall_so_far(self, now: float) -> float | None:
        """`stall` if the next token came now; None before the first chunk, 0 while there is still text to read."""
        if self.first_at is None or now <= self.first_at:
            return None
        starved = self._starved_seconds + max(0.0, now - self._read_until)
        return starved / (max(now, self._read_until) - self.first_at)

    @property
    def tokens_per_chunk(self) -> float | None:
        return self.tokens / self.chunks if self.chunks else None

    def _read(self, at: float, tokens: int) -> None:
        if self.last_at is None:
            self._read_until = at
        elif at > self._read_until:
            self._starved_seconds += at - self._read_until
            self._read_until = at
        self._read_until += tokens * READER_SECONDS_PER_TOKEN

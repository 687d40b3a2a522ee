"""How fast is each path just now, how much does it draft, and how much of that is accepted?"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.traffic import PathTally

RATE_SECONDS = 10.0
ENOUGH_ROUNDS = 32
"""Fewer within the span say nothing of how much is drafted."""


@dataclass(frozen=True, slots=True)
class Totals:
    """A path's counters at one moment, or their growth over a stretch of time."""

    output_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    """Verify rounds of a speculating path, with or without a draft."""
    late: int = 0
    requests: int = 0
    """That have ended."""

    @classmethod
    def of(cls, tally: PathTally) -> Totals:
        return cls(
            tally.output_tokens,
            tally.drafted,
            tally.accepted,
            tally.rounds + tally.empty_rounds,
            tally.late_rounds,
            sum(tally.outcomes.values()),
        )

    def since(self, earlier: Totals) -> Totals:
        return Totals(
            self.output_tokens - earlier.output_tokens,
            self.drafted - earlier.drafted,
            self.accepted - earlier.accepted,
            self.rounds - earlier.rounds,
            self.late - earlier.late,
            self.requests - earlier.requests,
        )

    @property
    def acceptance(self) -> float | None:
        """accepted/drafted; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted > 0 else None


@dataclass(slots=True)
class Rates:
    """Recent speed and acceptance, from counters sampled now and then."""

    samples: deque[tuple[float, Mapping[str, Totals]]] = field(default_factory=deque)
    began: Mapping[str, Totals] | None = None
    """The first sample."""
    busy: dict[str, Totals] = field(default_factory=dict)
    """Growth over the last span in which a path had `ENOUGH_ROUNDS`."""

    def sample(self, now: float, totals: Mapping[str, Totals]) -> None:
        """Keep one sample from before the span, so that the span is covered."""
        self.began = totals if self.began is None else self.began
        self.samples.append((now, totals))
        while len(self.samples) > 2 and now - self.samples[1][0] >= RATE_SECONDS:
            self.samples.popleft()
        for path in totals:
            grown, _ = self._span(path)
            if grown.rounds >= ENOUGH_ROUNDS:
                self.busy[path] = grown

    def tokens_per_second(self, path: str) -> float:
        grown, seconds = self._span(path)
        return grown.output_tokens / seconds if seconds > 0 else 0.0

    def requests_per_second(self) -> float:
        """Requests that ended, on whichever path."""
        spans = [self._span(path) for path in (self.samples[-1][1] if self.samples else ())]
        return sum(grown.requests / seconds for grown, seconds in spans if seconds > 0)

    def acceptance(self, path: str) -> float | None:
        return self._span(path)[0].acceptance

    def seen(self, path: str) -> Totals:
        """Growth since the first sample."""
        if not self.samples or self.began is None:
            return Totals()
        return self.samples[-1][1].get(path, Totals()).since(self.began.get(path, Totals()))

    def _span(self, path: str) -> tuple[Totals, float]:
        if not self.samples:
            return Totals(), 0.0
        (start, first), (end, last) = self.samples[0], self.samples[-1]
        return last.get(path, Totals()).since(first.get(path, Totals())), end - start

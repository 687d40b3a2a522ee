"""How fast is each path just now, and how much of its drafts is accepted?"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

RATE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Totals:
    """A path's counters at one moment."""

    output_tokens: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Rates:
    """Recent speed and acceptance, from counters sampled now and then."""

    samples: deque[tuple[float, Mapping[str, Totals]]] = field(default_factory=deque)

    def sample(self, now: float, totals: Mapping[str, Totals]) -> None:
        """Keep one sample from before the span, so that the span is covered."""
        self.samples.append((now, totals))
        while len(self.samples) > 2 and now - self.samples[1][0] >= RATE_SECONDS:
            self.samples.popleft()

    def tokens_per_second(self, path: str) -> float:
        first, last, seconds = self._span(path)
        return (last.output_tokens - first.output_tokens) / seconds if seconds > 0 else 0.0

    def acceptance(self, path: str) -> float | None:
        first, last, _ = self._span(path)
        drafted = last.drafted - first.drafted
        return (last.accepted - first.accepted) / drafted if drafted > 0 else None

    def _span(self, path: str) -> tuple[Totals, Totals, float]:
        if not self.samples:
            return Totals(), Totals(), 0.0
        (start, first), (end, last) = self.samples[0], self.samples[-1]
        return first.get(path, Totals()), last.get(path, Totals()), end - start

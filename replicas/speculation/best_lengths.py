"""Which draft lengths bring a batch the most tokens per second?

A drafted token counts only if all before it do, so k tokens at acceptance α bring α + α² + … + α^k beyond the token
that every step brings: E[tokens] = (1 - α^(k+1)) / (1 - α) in all (Leviathan, Kalman, Matias: "Fast Inference from
Transformers via Speculative Decoding", 2023, equation 1). A step costs target(rows) + draft(depth) seconds, where
every sequence adds k rows to its own and the depth is the largest k. The lengths maximise tokens per second of
the batch. A tree is k levels deep instead: it counts by levels, α is the chance that a level holds the target's token,
and each level adds as many rows as it has nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate, repeat

from replicas.speculation.step_costs import Line

LARGEST_ITERATIONS = 16


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence of the next step: its acceptance, and the most tokens that may be drafted for it."""

    acceptance: float
    cap: int


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a step of one batch: of the target by drafted rows, and of drafting with waiting and wire included."""

    target: Line
    draft: Line
    """By levels beyond the first; without any level there is nothing to pay."""
    level_rows: tuple[int, ...] = ()
    """Rows that each level of a draft adds; 1 where none is named, as in a chain."""

    def seconds(self, drafted_rows: int, depth: int) -> float:
        return self.target.at(drafted_rows) + (self.draft.at(depth - 1) if depth else 0.0)

    def draft_rows(self, longest: int) -> list[int]:
        """Rows of a draft by its length, from 0 to the longest."""
        levels = (*self.level_rows, *repeat(1, longest - len(self.level_rows)))
        return list(accumulate(levels[:longest], initial=0))


@dataclass(frozen=True, slots=True)
class Choice:
    """Draft lengths, one per candidate, with the tokens they are expected to bring and the seconds they cost."""

    lengths: tuple[int, ...]
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds > 0 else float("inf")


def choose_lengths(candidates: Sequence[Candidate], costs: Costs, max_rows: int | None = None) -> Choice:
    """The lengths with the highest expected tokens per second; the shortest of equal ones.

    All drafts together add at most `max_rows` rows. Among equal candidates the first give way, and a tree that grows
    wider with its depth may be given a little less than the best.

    Dinkelbach's iteration ("On Nonlinear Fractional Programming", 1967): at a rate λ known to be reachable, the
    choice with the largest tokens - λ · seconds has a higher rate, until none has.
    """
    outlook = _Outlook(candidates, costs, max_rows)
    best = outlook.choice([0] * len(candidates))
    for _ in range(LARGEST_ITERATIONS):
        rate = best.rate
        better = max(outlook.options(rate), key=lambda option: option.tokens - rate * option.seconds)
        if better.rate <= rate:
            break
        best = better
    return best


class _Outlook:
    """What every length of every candidate would bring, and the rows it would add."""

    def __init__(self, candidates: Sequence[Candidate], costs: Costs, max_rows: int | None) -> None:
        self._costs = costs
        self._max_rows = max_rows
        self._rows = costs.draft_rows(max((candidate.cap for candidate in candidates), default=0))
        self._gains = [_gains(candidate) for candidate in candidates]
        """Expected accepted tokens by length, of each candidate."""

    def options(self, rate: float) -> Iterator[Choice]:
        """For every depth the best lengths up to it, if a second is worth `rate` tokens."""
        row_price = rate * self._costs.target.slope
        best = [self._best_lengths(gains, row_price) for gains in self._gains]
        for depth in range(len(self._rows)):
            yield self.choice(self._fitted([lengths[min(depth, len(lengths) - 1)] for lengths in best]))

    def choice(self, lengths: Sequence[int]) -> Choice:
        count = len(lengths)
        gained = sum(gains[length] for gains, length in zip(self._gains, lengths, strict=True))
        rows = sum(self._rows[length] for length in lengths)
        seconds = self._costs.seconds(rows, max(lengths, default=0))
        return Choice(tuple(lengths), count + gained, seconds)

    def _best_lengths(self, gains: Sequence[float], row_price: float) -> list[int]:
        """For every depth the length up to it that brings most."""
        best, highest = 0, 0.0
        found = []
        for length, gain in enumerate(gains):
            surplus = gain - row_price * self._rows[length]
            if surplus > highest:
                best, highest = length, surplus
            found.append(best)
        return found

    def _fitted(self, lengths: list[int]) -> list[int]:
        """Give up the levels that bring least for a row, until there is room for the rest."""
        excess = 0 if self._max_rows is None else sum(self._rows[length] for length in lengths) - self._max_rows
        if excess <= 0:
            return lengths
        last = [(self._worth(number, length), number) for number, length in enumerate(lengths) if length]
        heapify(last)
        while excess > 0 and last:
            _, number = heappop(last)
            excess -= self._rows[lengths[number]] - self._rows[lengths[number] - 1]
            lengths[number] -= 1
            if lengths[number]:
                heappush(last, (self._worth(number, lengths[number]), number))
        return lengths

    def _worth(self, number: int, length: int) -> float:
        """Tokens that each row of the last level brings."""
        gains, rows = self._gains[number], self._rows
        return (gains[length] - gains[length - 1]) / (rows[length] - rows[length - 1])


def _gains(candidate: Candidate) -> list[float]:
    """Expected accepted tokens by length: α + α² + … + α^length."""
    return list(accumulate((candidate.acceptance**level for level in range(1, candidate.cap + 1)), initial=0.0))

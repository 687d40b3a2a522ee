"""Which acceptance may a kind of request be held to: a given one, or what its own first requests prove?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from canary.stats.bounded_mean import lower_bound
from fleet.histogram import LogHistogram, value_of

FEWEST_REQUESTS = 50
MOST_REQUESTS = 2000
"""After so many it is taken as far as it is known: the floor lies lower than asked, and nothing waits for ever."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The acceptance that later requests are compared with.

    A learned one is the lower end of a confidence sequence: the chance that it ever lies above the highest mean
    that the kind had while it was learned is at most `alpha`, in any dependence. It is learned until it is within
    half of the tolerated decrease of the mean that was seen; meanwhile it serves as far as it is known.
    """

    value: float = 0.0
    """Known to be reached; 0 while nothing is known."""
    alpha: float = 0.0
    """0 where it was given."""
    learned: LogHistogram = field(default_factory=LogHistogram)
    """1 + accepted/drafted of the requests that it was learned from."""
    is_settled: bool = False

    @classmethod
    def given(cls, value: float) -> Reference:
        return cls(value, is_settled=True)

    def learn(self, histogram: LogHistogram, max_decrease: float) -> Reference:
        """With a window's requests (1 + accepted/drafted of each)."""
        if self.is_settled:
            return self
        pooled = self.learned.copy()
        pooled.merge(histogram)
        value = max(self.value, lower_bound(shares(pooled), self.alpha))
        grown = replace(self, value=value, learned=pooled)
        is_close = grown.slack <= max_decrease / 2.0 and pooled.total >= FEWEST_REQUESTS
        return replace(grown, is_settled=is_close or pooled.total >= MOST_REQUESTS)

    @property
    def slack(self) -> float:
        """By how much the reference lies below the mean that was seen, relative; 0 where nothing was accepted."""
        accepted = self.learned.sum - self.learned.total
        return 1.0 - self.value * self.learned.total / accepted if accepted > 0 else 0.0

    def missing(self, max_decrease: float) -> int:
        """About how many more requests settle it: the slack shrinks with the root of their number."""
        if self.is_settled:
            return 0
        total, aim = self.learned.total, max_decrease / 2.0
        wanted = min(MOST_REQUESTS, total * (self.slack / aim) ** 2) if aim > 0 and total else MOST_REQUESTS
        return max(1, FEWEST_REQUESTS - total, round(wanted) - total)


def shares(histogram: LogHistogram) -> Iterable[tuple[float, int]]:
    """Acceptance of each request to within its bucket, shifted so that the mean is exact, and how often."""
    rough = sum(value_of(bucket) * count for bucket, count in histogram.counts.items())
    shift = (histogram.sum - rough) / histogram.total
    for bucket, count in histogram.counts.items():
        yield min(max(value_of(bucket) + shift - 1.0, 0.0), 1.0), count

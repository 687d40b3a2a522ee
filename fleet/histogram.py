"""A mergeable histogram of positive values with 1 % relative buckets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddsketch.mapping import LogarithmicMapping

RELATIVE_ACCURACY = 0.01
_MAPPING = LogarithmicMapping(relative_accuracy=RELATIVE_ACCURACY)
_SMALLEST = 1e-6


@dataclass(slots=True)
class LogHistogram:
    """Counts by logarithmic bucket: a DDSketch (Masson et al., VLDB 2019) with a sparse store.

    Two histograms merge exactly, and `count_above` is exact at bucket edges, which is what a
    test on exceedances needs. Values are in the caller's unit; those below 1e-6 count as 1e-6.
    """

    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0
    sum: float = 0.0

    def add(self, value: float, count: int = 1) -> None:
        bucket = bucket_of(value)
        self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.total += count
        self.sum += value * count

    def merge(self, other: LogHistogram, times: int = 1) -> None:
        """Add the other's values; with `times` = -1 take them out, where they are known to be in."""
        mine = self.counts
        for bucket, count in other.counts.items():
            mine[bucket] = mine.get(bucket, 0) + times * count
        if times < 0:
            self.counts = {bucket: count for bucket, count in mine.items() if count}
        self.total += times * other.total
        self.sum += times * other.sum

    def copy(self) -> LogHistogram:
        return LogHistogram(dict(self.counts), self.total, self.sum)

    def count_above(self, bucket: int) -> int:
        """How many values lie in buckets higher than `bucket`."""
        return sum(count for index, count in self.counts.items() if index > bucket)

    def quantile_bucket(self, q: float) -> int | None:
        """The bucket that holds the q-quantile (0 ≤ q ≤ 1), or None while empty."""
        if self.total == 0:
            return None
        rank = q * (self.total - 1)
        seen = 0
        last = None
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            last = bucket
            if seen > rank:
                return bucket
        return last

    def quantile(self, q: float) -> float | None:
        """The q-quantile within 1 %, or None while empty."""
        bucket = self.quantile_bucket(q)
        return None if bucket is None else value_of(bucket)

    def mean(self) -> float | None:
        return self.sum / self.total if self.total else None

    def to_json(self) -> dict[str, object]:
        return {"counts": {str(k): v for k, v in self.counts.items()}, "sum": self.sum}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> LogHistogram:
        counts = value["counts"]
        total_sum = value["sum"]
        if not isinstance(counts, Mapping) or not isinstance(total_sum, (int, float)):
            raise ValueError("a histogram needs 'counts' and 'sum'")
        parsed = {int(k): int(v) for k, v in counts.items()}
        return cls(counts=parsed, total=sum(parsed.values()), sum=float(total_sum))


def bucket_of(value: float) -> int:
    """The bucket of a value; a bucket's values differ by at most 2 %."""
    return int(_MAPPING.key(max(value, _SMALLEST)))


def value_of(bucket: int) -> float:
    """A value within 1 % of every value in the bucket."""
    return float(_MAPPING.value(bucket))

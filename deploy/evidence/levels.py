"""How many open requests are low, medium and peak load? Peak is where throughput stops growing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

LEAST_GROWTH = 1.10
"""Twice the concurrency must bring at least so much more throughput for the search to go on."""
NEAR_PEAK = 0.95
"""The peak is the lowest concurrency that reaches this share of the highest throughput."""


BLOCKS = 3
"""Of each concurrency. Medians count, so that one hiccup neither ends the search nor moves the peak."""


@dataclass(frozen=True, slots=True)
class Probed:
    """One concurrency, as measured in one block or as the median of several."""

    concurrency: int
    tokens_per_second: float
    client_lag_share: float
    """The client's p95 lateness over the median tpot: above the limit it is the client's throughput that was found."""


def medians(probes: Iterable[Probed]) -> list[Probed]:
    """One for each concurrency that was measured in all its blocks, in ascending order."""
    seen: dict[int, list[Probed]] = {}
    for probe in probes:
        seen.setdefault(probe.concurrency, []).append(probe)
    return [
        Probed(
            concurrency, median(one.tokens_per_second for one in blocks), median(one.client_lag_share for one in blocks)
        )
        for concurrency, blocks in sorted(seen.items())
        if len(blocks) >= BLOCKS
    ]


def next_probe(seen: Sequence[Probed], limit: int, max_client_lag: float) -> int | None:
    """The next concurrency to measure, doubling from 1.

    None when throughput no longer grows, at the limit, or where more would only measure the client.
    """
    if not seen:
        return 1
    last = seen[-1]
    if last.client_lag_share > max_client_lag:
        return None
    if len(seen) > 1 and last.tokens_per_second < LEAST_GROWTH * seen[-2].tokens_per_second:
        return None
    following = min(last.concurrency * 2, limit)
    return following if following > last.concurrency else None


def find_levels(seen: Sequence[Probed], max_client_lag: float) -> dict[str, int]:
    """Concurrency by name: `low` is 1, `peak` as measured, `medium` their geometric mean; names that coincide merge.

    Where the client was the bottleneck nothing is known of the server; the lowest concurrency stands in any case.
    """
    known = [probe for probe in seen if probe.client_lag_share <= max_client_lag] or list(seen[:1])
    best = max(probe.tokens_per_second for probe in known)
    peak = min(probe.concurrency for probe in known if probe.tokens_per_second >= NEAR_PEAK * best)
    named = {"medium": round(math.sqrt(peak)), "low": 1, "peak": peak}  # where two coincide, the later name stays
    by_level = {level: name for name, level in named.items()}
    return {name: level for level, name in sorted(by_level.items())}

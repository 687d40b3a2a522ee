"""How many open requests are low, medium and peak load? Peak is where throughput stops growing."""

from __future__ import annotations

import math
from collections.abc import Mapping

LEAST_GROWTH = 1.10
"""Twice the concurrency must bring at least so much more throughput for the search to go on."""
NEAR_PEAK = 0.95
"""The peak is the lowest concurrency that reaches this share of the highest throughput."""


def next_probe(throughput: Mapping[int, float], limit: int) -> int | None:
    """The next concurrency to measure, doubling from 1; None when throughput no longer grows, or at the limit.

    `throughput` is in tokens per second by concurrency, as measured so far.
    """
    tried = sorted(throughput)
    if not tried:
        return 1
    if len(tried) > 1 and throughput[tried[-1]] < LEAST_GROWTH * throughput[tried[-2]]:
        return None
    following = min(tried[-1] * 2, limit)
    return following if following > tried[-1] else None


def find_levels(throughput: Mapping[int, float]) -> dict[str, int]:
    """Concurrency by name: `low` is 1, `peak` as measured, `medium` their geometric mean; names that coincide merge."""
    best = max(throughput.values())
    peak = min(level for level, value in throughput.items() if value >= NEAR_PEAK * best)
    named = {"medium": round(math.sqrt(peak)), "low": 1, "peak": peak}  # where two coincide, the later name stays
    by_level = {level: name for name, level in named.items()}
    return {name: level for level, name in sorted(by_level.items())}

"""By how much did a candidate gain in each metric, over the paired rounds of a cell or of a part of it?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np

from deploy.evidence.bootstrap import MIN_ROUNDS, Floats, PairedEffect, quantile_ratio
from deploy.evidence.pairing import LATENCIES, THROUGHPUT, PairedRound, Timed, log_gains
from deploy.evidence.result import FEWEST_FOR_P95, Gain

STATISTICS = (("p50", 0.5, 1), ("p95", 0.95, FEWEST_FOR_P95))
"""Statistic, its quantile, and the fewest completed requests of either arm for an interval."""


def all_gains(rounds: Sequence[PairedRound], seed: int) -> list[Gain]:
    """Means over pairs of the same request, then quantiles over all completed requests of each arm."""
    gains = [mean_gain(rounds, metric, seed) for metric in (*LATENCIES, THROUGHPUT)]
    arms = ([item.baseline_requests for item in rounds], [item.candidate_requests for item in rounds])
    done = min(sum(timed.request.is_done for part in arm for timed in part) for arm in arms)
    for metric in ("ttft", "tpot", "itl", "e2e"):
        before, after = ([_values(part, metric) for part in arm] for arm in arms)
        for statistic, q, fewest in STATISTICS:
            ratio = quantile_ratio(before, after, q, seed)
            is_sure = ratio is not None and len(rounds) >= MIN_ROUNDS and done >= fewest
            interval = (ratio.low, ratio.high) if ratio is not None and is_sure else None
            gains.append(Gain(metric, statistic, None if ratio is None else ratio.estimate, interval))
    return gains


def mean_gain(rounds: Sequence[PairedRound], metric: str, seed: int) -> Gain:
    """The geometric mean over rounds; without an interval where they are too few."""
    values = log_gains(rounds, metric)
    if len(values) < MIN_ROUNDS:
        return Gain(metric, "mean", math.exp(sum(values) / len(values)) if values else None, None)
    ratio = PairedEffect(values, seed).ratio()
    return Gain(metric, "mean", ratio.estimate, (ratio.low, ratio.high))


def _values(requests: Sequence[Timed], metric: str) -> Floats:
    timings = [timed.timing for timed in requests if timed.request.is_done]
    if metric == "itl":
        return np.fromiter(chain.from_iterable(timing.itl for timing in timings), dtype=float)
    known = [value for timing in timings if (value := getattr(timing, metric)) is not None]
    return np.asarray(known, dtype=float)

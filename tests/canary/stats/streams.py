"""Seeded streams with known truth, and the question whether an observed error rate keeps a promise."""

from __future__ import annotations

import numpy as np
from scipy.stats import binom

from canary.stats.betting import Tail


def keeps_promise(alarms: int, runs: int, promised: float) -> bool:
    """Whether so many alarms in so many runs are compatible with a rate of at most `promised` (one in 10,000)."""
    return alarms <= int(binom.ppf(0.9999, runs, promised))


def clustered_windows(
    source: np.random.Generator, *, windows: int, requests: tuple[float, float], slowdown: float, margin: float
) -> list[tuple[Tail, Tail]]:
    """(canary, stable) tails of windows, as statistics.md section 3.1 models them.

    Time per token = window shock (shared by both arms) x request effect x token noise, 15 tokens a request;
    `requests` are the arms' mean requests per window; the threshold is stable's true p95.
    """
    shock, effect, noise = 0.10, 0.25, 0.40
    threshold = 1.6449 * float(np.sqrt(shock**2 + effect**2 + noise**2))
    found = []
    for _ in range(windows):
        shared = shock * source.standard_normal()
        arms = []
        for mean, shift in ((requests[0], np.log(slowdown) - np.log1p(margin)), (requests[1], 0.0)):
            count = int(source.poisson(mean))
            level = shared + shift + effect * source.standard_normal((count, 1))
            values = level + noise * source.standard_normal((count, 15))
            arms.append(Tail(int((values > threshold).sum()), int(values.size)))
        found.append((arms[0], arms[1]))
    return found

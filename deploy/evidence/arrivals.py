"""When does each request of an open loop begin? Seeded, so that both arms meet the same arrivals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]


def gamma_arrivals(count: int, rate_per_second: float, burstiness: float, seed: int) -> Seconds:
    """`count` arrivals in seconds, ascending, with gamma-distributed gaps of mean 1/rate.

    `burstiness` is the shape k of the gamma distribution: the gaps have a coefficient of variation of 1/√k, so 1 is
    a Poisson process, less comes in bursts, and more is smoother.
    """
    gaps = np.random.default_rng(seed).gamma(burstiness, 1.0 / (rate_per_second * burstiness), count)
    return np.cumsum(gaps)


def replayed_arrivals(recorded: Sequence[float], count: int, time_scale: float, seed: int) -> Seconds:
    """`count` arrivals in seconds from a stretch of a trace that the seed picks, beginning at 0.

    `recorded` is ascending and has at least two entries. Where the trace is shorter than `count`, it is played again
    from its beginning, one mean gap after its last arrival.
    """
    times = spread_ties(recorded)
    gaps = np.diff(times)
    circle = np.append(gaps, gaps.mean())
    start = int(np.random.default_rng(seed).integers(len(circle)))
    chosen = circle[(start + np.arange(count - 1)) % len(circle)]
    return np.concatenate(([0.0], np.cumsum(chosen))) * time_scale


def spread_ties(recorded: Sequence[float]) -> Seconds:
    """Arrivals that share one coarse timestamp, evenly over the time up to the next one; order is kept.

    Some public traces round to seconds: replayed as they are, every tick would be a burst that never was.
    """
    times = np.asarray(recorded, dtype=float)
    distinct, first, counts = np.unique(times, return_index=True, return_counts=True)
    widths = np.append(np.diff(distinct), np.diff(distinct).mean() if len(distinct) > 1 else 1.0)
    within = np.arange(len(times)) - np.repeat(first, counts)
    return times + np.repeat(widths / counts, counts) * within

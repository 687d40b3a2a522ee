"""What would two arms of a fleet have reported? Seeded traffic with correlated requests, moments and hosts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from canary.windows import ArmUsage, Window
from fleet.histogram import RELATIVE_ACCURACY, LogHistogram
from fleet.traffic import PathTally

SLICE_SECONDS = 10.0
TOKENS = 16
"""Of each request."""
REQUEST_EFFECT, TOKEN_NOISE = 0.25, 0.40
"""Standard deviations of ln(time per token), between requests and within one (reference model of the design)."""
ITL_SECONDS, TTFT_SECONDS = 0.030, 0.3
CAPACITY = 60.0
"""Requests that a saturated GPU completes in a slice."""
_LOG_GAMMA = math.log((1.0 + RELATIVE_ACCURACY) / (1.0 - RELATIVE_ACCURACY))

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shocks:
    """What shakes all requests of a moment, in ln(time per token)."""

    shared: float = 0.10
    """Of both arms at once."""
    host: float = 0.0
    """Of one host; each arm has two."""
    persistence: float = 0.0
    """Correlation of a host's shock with its last one, 10 s before."""


@dataclass(frozen=True, slots=True)
class Harm:
    """How the canary differs."""

    slowdown: float = 1.0
    """Factor on every time."""
    error_rate: float = 0.005
    acceptance: float = 0.70
    acceptance_after: int = 0
    """Requests with a draft before its acceptance changes from 0.70."""
    throughput: float = 1.0
    """Factor on what a saturated GPU completes."""


@dataclass(slots=True)
class Slice:
    """Ten seconds of both arms."""

    stable: PathTally
    canary: PathTally
    stable_means: Values
    """Mean time per token of each request, for tests that look at requests."""
    canary_means: Values
    usage: tuple[ArmUsage, ArmUsage]
    """Stable's and the canary's."""


@dataclass(slots=True)
class Traffic:
    """One fleet's traffic, slice by slice."""

    source: np.random.Generator
    requests_per_second: float
    shocks: Shocks = Shocks()
    harm: Harm = Harm()
    is_peak: bool = False
    """Both paths have more to do than they can."""
    _hosts: Values = field(default_factory=lambda: np.zeros((2, 2)))
    _drafted: int = 0

    @property
    def is_harmful(self) -> bool:
        """Whether the next slice's canary differs as it is meant to."""
        return self._drafted >= self.harm.acceptance_after

    def slice(self, percent: float) -> Slice:
        """The next ten seconds, with so many percent of the requests on the canary."""
        source, shocks = self.source, self.shocks
        shared = shocks.shared * source.standard_normal()
        fresh = math.sqrt(1.0 - shocks.persistence**2) * shocks.host * source.standard_normal((2, 2))
        self._hosts = shocks.persistence * self._hosts + fresh
        mean = self.requests_per_second * SLICE_SECONDS
        arms, means, usage = [], [], []
        for arm, share in ((0, 1.0 - percent / 100.0), (1, percent / 100.0)):
            harm = self.harm if arm else Harm()
            count = int(source.poisson(mean * share))
            level = shared + math.log(harm.slowdown) + self._hosts[arm][source.integers(0, 2, count)]
            tally, of_request = _served(source, level, harm)
            tally.newcomers = count
            if arm and count:
                self._draft(tally, count)
            arms.append(tally)
            means.append(of_request)
            usage.append(self._usage(count, harm))
        return Slice(arms[0], arms[1], means[0], means[1], (usage[0], usage[1]))

    def _draft(self, tally: PathTally, count: int) -> None:
        """Mean 0.70 with a deviation of 0.15 between requests, until harm sets in."""
        mean = self.harm.acceptance if self.is_harmful else 0.70
        self._drafted += count
        weight = mean * (1.0 - mean) / 0.15**2 - 1.0
        values = 1.0 + self.source.beta(mean * weight, (1.0 - mean) * weight, count)
        tally.request_acceptance = histogram_of(values)
        tally.acceptance_by = {"greedy/short": tally.request_acceptance}

    def _usage(self, count: int, harm: Harm) -> ArmUsage:
        source = self.source
        waiting = int(source.poisson(0.1 * count))
        pressed = int(source.binomial(20, 0.2))
        if not self.is_peak:
            return ArmUsage(10, 20, 0, pressed, 20.0, count, waiting)
        completed = int(source.poisson(2 * CAPACITY * harm.throughput * math.exp(0.05 * source.standard_normal())))
        return ArmUsage(10, 20, 20, pressed, 20.0, completed, waiting)


def _served(source: np.random.Generator, level: Values, harm: Harm) -> tuple[PathTally, Values]:
    """Requests that all ended in the slice, with the given ln(time per token) each."""
    count = len(level)
    tally = PathTally(assigned=count)
    if not count:
        return tally, np.zeros(0)
    level = level + REQUEST_EFFECT * source.standard_normal(count)
    itl = ITL_SECONDS * np.exp(level[:, None] + TOKEN_NOISE * source.standard_normal((count, TOKENS)))
    means = itl.mean(axis=1)
    tally.itl = tally.gap = histogram_of(itl.ravel())
    tally.tpot = histogram_of(means)
    tally.ttft = histogram_of(TTFT_SECONDS * np.exp(level + 0.4 * source.standard_normal(count)))
    tally.queue = histogram_of(0.002 * source.standard_exponential(count))
    tally.stall = histogram_of(1.0 + np.clip(1.0 - 0.020 / means, 0.0, 1.0))
    failed = int(source.binomial(count, harm.error_rate))
    left = int(source.binomial(count - failed, 0.02))
    tally.outcomes = {"failed": failed, "cancelled": left, "done": count - failed - left}
    return tally, means


def histogram_of(values: Values) -> LogHistogram:
    """The same as adding the values one by one, a hundred times faster; all of them above 1e-6 s or clipped there."""
    buckets = np.ceil(np.log(np.maximum(values, 1e-6)) / _LOG_GAMMA).astype(int)
    found, counts = np.unique(buckets, return_counts=True)
    return LogHistogram(dict(zip(found.tolist(), counts.tolist(), strict=True)), len(values), float(values.sum()))


def window_of(slices: list[Slice], percent: float) -> Window:
    """The slices as the judge sees them."""
    stable, canary = PathTally(), PathTally()
    stable_usage, canary_usage = ArmUsage(), ArmUsage()
    for item in slices:
        stable.merge(item.stable)
        canary.merge(item.canary)
        stable_usage += item.usage[0]
        canary_usage += item.usage[1]
    return Window(
        len(slices) * SLICE_SECONDS,
        percent,
        stable,
        canary,
        stable_usage=stable_usage,
        canary_usage=canary_usage,
    )

"""Guardrail peak_throughput: does a saturated canary complete fewer requests per GPU than a saturated stable?"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from canary.judging.accusation import Accusation, Budget, Moment
from canary.judging.pooled import Pooled, readings
from canary.stats.betting import BETS, log_factors, log_ratio
from canary.stats.running_mean import ClippedMean
from canary.verdict import Bounds, Level, Need, Proof, Stage, Verdict
from canary.windows import ArmUsage, Window

SPAN = 0.15
"""Natural log of the rates' ratio beyond which a block counts no more: one bad one must not decide."""
COMPLETIONS = 100
"""Expected of each path in what is compared at once; with many fewer the logarithm of a noisy rate is biased."""
LONGEST = 5
"""Windows that a slow canary is given to complete so many. Stable gets as long as it takes: too small a sample
flatters its arm, and only the canary's may be flattered."""
SATURATED = 0.9
"""Share of its replicas' samples that make a path's window a saturated one."""


@dataclass(frozen=True, slots=True)
class Block:
    """Saturated windows that are compared as one."""

    length: int
    """In windows; decided before the first of them, or the comparison would choose its own data."""
    windows: int = 0
    stable: Pooled = field(default_factory=Pooled)
    canary: Pooled = field(default_factory=Pooled)

    def grown(self, stable: Pooled, canary: Pooled) -> Block:
        return Block(self.length, self.windows + 1, self.stable + stable, self.canary + canary)

    @property
    def is_full(self) -> bool:
        return self.windows >= self.length


@dataclass(frozen=True, slots=True)
class ThroughputRail:
    """State of the guardrail."""

    limit: float
    """Highest relative decrease that is tolerated."""
    min_windows: int
    accusation: Accusation
    stable: Pooled = field(default_factory=Pooled)
    """Completed requests of its saturated windows, over their GPU-seconds."""
    canary: Pooled = field(default_factory=Pooled)
    ratios: ClippedMean = field(default_factory=lambda: ClippedMean(SPAN))
    """Natural logs of the blocks' ratios, canary to stable."""
    seen: int = 0
    """Saturated windows in this attempt."""
    windows: int = 0
    """Of them, those that have been compared."""
    block: Block | None = None
    """The one that is being filled."""
    guardrail: Literal["peak_throughput"] = "peak_throughput"
    kind: Literal["throughput"] = "throughput"

    @classmethod
    def start(cls, limit: float, min_windows: int, share: float) -> ThroughputRail:
        return cls(limit, min_windows, Accusation.start(len(BETS), share))

    def next_step(self, share: float) -> ThroughputRail:
        return replace(self, accusation=self.accusation.next_step(share))

    def observe(self, window: Window, moment: Moment) -> ThroughputRail:
        """Settle a bet on every full block of steady windows in which both paths had as much to do as they can.

        Which windows count is decided by how busy the replicas were and by what windows before completed,
        never by what these complete: leaving out those with few completions would raise the rate of the
        path with fewer GPUs.
        """
        stable, canary = window.stable_usage, window.canary_usage
        if not moment.is_steady or not (_is_saturated(stable) and _is_saturated(canary)):
            return self
        of_stable, of_canary = _pooled(stable, window.seconds), _pooled(canary, window.seconds)
        grown = replace(self, stable=self.stable + of_stable, canary=self.canary + of_canary, seen=self.seen + 1)
        opened = self.block or self._next_block()
        if opened is None:
            return grown
        block = opened.grown(of_stable, of_canary)
        return grown._settled(block, moment) if block.is_full else replace(grown, block=block)

    def _next_block(self) -> Block | None:
        """As long as both paths need for `COMPLETIONS` at their mean so far; None before stable completed any."""
        if not self.stable.count:
            return None
        stable, canary = (math.ceil(COMPLETIONS * self.seen / (arm.count + 0.5)) for arm in (self.stable, self.canary))
        return Block(max(stable, min(canary, LONGEST)))

    def _settled(self, block: Block, moment: Moment) -> ThroughputRail:
        of_stable, of_canary = _rate(block.stable), _rate(block.canary)
        harm = log_ratio(of_canary, of_stable * (1.0 - self.limit), span=SPAN)
        return replace(
            self,
            ratios=self.ratios.update(math.log(of_canary / of_stable)),
            accusation=self.accusation.settle(log_factors(harm), is_promoted=moment.is_promoted),
            windows=self.windows + block.windows,
            block=None,
        )

    def proof(self, budget: Budget) -> Proof:
        return self.accusation.proof(budget)

    def judge(self, stage: Stage, budget: Budget) -> Verdict:
        """FAIL on proof of a loss; before everything moves, INSUFFICIENT without a peak: no capacity is on trust."""
        proof = self.proof(budget)
        level, reason, need = Level.PASS, self._seen(), Need()
        if proof.is_reached:
            level = Level.FAIL
            reason = f"requests per second and GPU at peak fell by more than {self.limit * 100:g} %: {self._seen()}"
        elif stage.is_before_last and self.windows < self.min_windows:
            level = Level.INSUFFICIENT
            compared = f"{self.windows} of {self.min_windows} saturated windows compared"
            reason = f"{compared}{self._lacking()}: wait for a peak, or send load"
            need = Need(0, None)
        estimate, interval = self._change()
        return Verdict(
            self.guardrail,
            level,
            reason,
            "percent",
            estimate,
            interval,
            -self.limit,
            proof,
            self.canary.count,
            need,
            self._seconds_to_trip(proof, stage),
            readings(self.stable, self.canary, "rate", " requests/s per GPU"),
        )

    def _seconds_to_trip(self, proof: Proof, stage: Stage) -> float | None:
        """A bet takes as long as its block."""
        seconds = self.accusation.seconds_to_trip(proof, stage)
        return None if seconds is None else seconds * self.windows / self.accusation.bets

    def _lacking(self) -> str:
        """What the next comparison waits for."""
        if not self.seen:
            return ""
        block = self.block or self._next_block()
        if block is None:
            return f" ({self.seen} seen, in which stable completed nothing)"
        return f" ({block.length - block.windows} more until each path should have completed {COMPLETIONS} requests)"

    def _seen(self) -> str:
        stable, canary = self.stable.mean, self.canary.mean
        if stable is None or canary is None:
            return "no window yet in which both paths were saturated"
        return f"canary {canary:.3g}, stable {stable:.3g} in {self.seen} saturated windows"

    def _change(self) -> tuple[float | None, Bounds | None]:
        """Relative change of the pooled rate; the interval is for the blocks' mean clipped log ratio."""
        stable, canary = self.stable.mean, self.canary.mean
        bounds = self.ratios.interval
        if stable is None or canary is None or bounds is None:
            return None, None
        lower, upper = (None if end is None else math.expm1(end) for end in bounds)
        return canary / stable - 1.0, (lower, upper)


def _pooled(usage: ArmUsage, seconds: float) -> Pooled:
    return Pooled(usage.completed, usage.mean_gpus * seconds, usage.completed)


def _rate(arm: Pooled) -> float:
    """Completions per GPU-second, above 0.

    Half a completion more takes the bias out of the logarithm: for a Poisson count with mean m,
    E log(count + 1/2) = log m + O(1/m²), as in the empirical logit (Anscombe, Biometrika 43, 1956).
    """
    return (arm.total + 0.5) / arm.weight


def _is_saturated(usage: ArmUsage) -> bool:
    is_full = usage.samples > 0 and usage.saturated >= SATURATED * usage.samples
    return is_full and usage.mean_gpus > 0

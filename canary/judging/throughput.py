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
"""Natural log of the rates' ratio beyond which a window counts no more: one bad window must not decide."""
MIN_COMPLETIONS = 30
"""In either arm and window; with fewer the logarithm of a noisy rate lies too low (by 1/(2n))."""
SATURATED = 0.9
"""Share of its replicas' samples that make a path's window a saturated one."""


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
    """Natural logs of the windows' ratios, canary to stable."""
    windows: int = 0
    """Saturated windows in this attempt."""
    guardrail: Literal["peak_throughput"] = "peak_throughput"
    kind: Literal["throughput"] = "throughput"

    @classmethod
    def start(cls, limit: float, min_windows: int, share: float) -> ThroughputRail:
        return cls(limit, min_windows, Accusation.start(len(BETS), share))

    def next_step(self, share: float) -> ThroughputRail:
        return replace(self, accusation=self.accusation.next_step(share))

    def observe(self, window: Window, moment: Moment) -> ThroughputRail:
        """Settle the bet of a steady window in which both paths had as much to do as they can."""
        stable, canary = window.stable_usage, window.canary_usage
        if not moment.is_steady or not (_is_saturated(stable) and _is_saturated(canary)):
            return self
        of_stable, of_canary = (usage.completed / usage.mean_gpus for usage in (stable, canary))
        harm = log_ratio(of_canary, of_stable * (1.0 - self.limit), span=SPAN)
        return replace(
            self,
            stable=self.stable + _pooled(stable, window.seconds),
            canary=self.canary + _pooled(canary, window.seconds),
            ratios=self.ratios.update(math.log(of_canary / of_stable)),
            accusation=self.accusation.settle(log_factors(harm), is_promoted=moment.is_promoted),
            windows=self.windows + 1,
        )

    def proof(self, _: Stage, budget: Budget) -> Proof:
        return self.accusation.proof(budget)

    def judge(self, stage: Stage, budget: Budget) -> Verdict:
        """FAIL on proof of a loss; before everything moves, INSUFFICIENT without a peak: no capacity is on trust."""
        proof = self.proof(stage, budget)
        level, reason, need = Level.PASS, self._seen(), Need()
        if proof.is_reached:
            level = Level.FAIL
            reason = f"requests per second and GPU at peak fell by more than {self.limit * 100:g} %: {self._seen()}"
        elif stage.is_before_last and self.windows < self.min_windows:
            level = Level.INSUFFICIENT
            reason = f"{self.windows} of {self.min_windows} saturated windows: wait for a peak, or send load"
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
            self.accusation.seconds_to_trip(proof, stage),
            readings(self.stable, self.canary, "rate", " requests/s per GPU"),
        )

    def _seen(self) -> str:
        stable, canary = self.stable.mean, self.canary.mean
        if stable is None or canary is None:
            return "no window yet in which both paths were saturated"
        return f"canary {canary:.3g}, stable {stable:.3g} in {self.windows} saturated windows"

    def _change(self) -> tuple[float | None, Bounds | None]:
        """Relative change of the pooled rate; the interval is for the windows' mean clipped log ratio."""
        stable, canary = self.stable.mean, self.canary.mean
        bounds = self.ratios.interval
        if stable is None or canary is None or bounds is None:
            return None, None
        lower, upper = (None if end is None else math.expm1(end) for end in bounds)
        return canary / stable - 1.0, (lower, upper)


def _pooled(usage: ArmUsage, seconds: float) -> Pooled:
    return Pooled(usage.completed, usage.mean_gpus * seconds, usage.completed)


def _is_saturated(usage: ArmUsage) -> bool:
    is_full = usage.samples > 0 and usage.saturated >= SATURATED * usage.samples
    return is_full and usage.mean_gpus > 0 and usage.completed >= MIN_COMPLETIONS

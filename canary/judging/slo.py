"""Guardrail gap_p99: do more than 1 % of the canary's gaps between chunks last longer than the limit?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from canary.judging.accusation import Accusation, Budget, Moment
from canary.judging.quantile import Arm
from canary.stats.betting import BETS, Tail, log_factors, slo_excess
from canary.stats.intervals import quantile_interval
from canary.verdict import Level, Need, Proof, Reading, Stage, Verdict
from canary.windows import Window, ended
from fleet.histogram import LogHistogram, bucket_of
from fleet.traffic import PathTally

QUANTILE = 0.99
ALLOWED = 1.0 - QUANTILE


@dataclass(frozen=True, slots=True)
class SloRail:
    """State of the guardrail."""

    limit: float
    """Seconds."""
    accusation: Accusation
    stable: Arm
    canary: Arm
    windows: int = 0
    """Bets settled in this step."""
    guardrail: Literal["gap_p99"] = "gap_p99"
    kind: Literal["slo"] = "slo"

    @classmethod
    def start(cls, limit: float, share: float) -> SloRail:
        nothing = Arm(LogHistogram())
        return cls(limit, Accusation.start(len(BETS), share), nothing, nothing)

    def next_step(self, share: float) -> SloRail:
        return replace(self, accusation=self.accusation.next_step(share), windows=0)

    def observe(self, window: Window, moment: Moment) -> SloRail:
        """Settle a steady window's bet. Silence that still lasts counts as a gap of its length so far."""
        if not moment.is_steady or not window.canary.gap.total + window.canary.silence.total:
            return self
        canary, stable = _tail(window.canary, self.limit), _tail(window.stable, self.limit)
        excess = slo_excess(
            canary,
            stable if stable.total else None,
            allowed=ALLOWED,
            suspect_is_larger=window.canary_percent > 50,
        )
        return replace(
            self,
            stable=self.stable.grown(window.stable.gap, ended(window.stable)),
            canary=self.canary.grown(window.canary.gap, ended(window.canary)),
            accusation=self.accusation.settle(log_factors(excess), is_promoted=moment.is_promoted),
            windows=self.windows + 1,
        )

    def proof(self, budget: Budget) -> Proof:
        return self.accusation.proof(budget)

    def judge(self, stage: Stage, budget: Budget) -> Verdict:
        """FAIL on proof that the limit is broken and that stable does not break it as much."""
        proof = self.proof(budget)
        p99, of_stable = (arm.values.quantile(QUANTILE) for arm in (self.canary, self.stable))
        seen = "no gap seen yet" if p99 is None else f"p99 {p99 * 1000:.0f} ms, limit {self.limit * 1000:g} ms"
        level, reason, need = Level.PASS, seen, Need()
        if proof.is_reached:
            level, reason = Level.FAIL, f"more than 1 % of gaps last over {self.limit * 1000:g} ms: {seen}"
        elif self.windows < stage.windows_needed:
            need = stage.need(windows=self.windows, requests=stage.requests_needed)
            level, reason = Level.INSUFFICIENT, f"{self.windows} of {stage.windows_needed} windows; {seen}"
        return Verdict(
            self.guardrail,
            level,
            reason,
            "seconds",
            p99,
            quantile_interval(self.canary.values, QUANTILE, self.canary.samples, 0.05),
            self.limit,
            proof,
            self.canary.samples,
            need,
            self.accusation.seconds_to_trip(proof, stage),
            (
                Reading("stable p99", of_stable, "seconds", self.stable.samples),
                Reading("canary p99", p99, "seconds", self.canary.samples),
            ),
        )


def _tail(tally: PathTally, limit: float) -> Tail:
    bucket = bucket_of(limit)
    above = tally.gap.count_above(bucket) + tally.silence.count_above(bucket)
    return Tail(above, tally.gap.total + tally.silence.total)

"""Guardrails error_rate, cancel_rate: do canary requests end badly more often than stable's, beyond the margin?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from canary.judging.accusation import Accusation, Budget, Moment
from canary.stats.binomial import EXCESSES, Count, log_factors
from canary.stats.intervals import mean_interval
from canary.verdict import Bounds, Level, Need, Proof, Reading, Stage, Verdict
from canary.windows import Window, cancellations, failures
from fleet.traffic import PathTally


@dataclass(frozen=True, slots=True)
class Measure:
    """What is counted."""

    what: str
    """As in "canary 3 of 50, stable 0 of 900 failed"."""
    rise: str
    of: Callable[[PathTally], Count]
    counts_warmup: bool
    """A request that fails has failed, cold or not; a client that leaves may have left a cold cache."""


MEASURES: Mapping[str, Measure] = {
    "error_rate": Measure("failed", "requests fail more often", failures, True),
    "cancel_rate": Measure("were left by their clients", "clients leave more often", cancellations, False),
}


@dataclass(frozen=True, slots=True)
class RateRail:
    """State of one such guardrail."""

    guardrail: str
    limit: float
    """Highest difference that is tolerated, 0 to 1."""
    accusation: Accusation
    stable: Count = field(default_factory=Count)
    canary: Count = field(default_factory=Count)
    requests: int = 0
    """Canary requests ended in this step."""
    kind: Literal["rate"] = "rate"

    @classmethod
    def start(cls, guardrail: str, limit: float, share: float) -> RateRail:
        return cls(guardrail, limit, Accusation.start(len(EXCESSES), share))

    @property
    def measure(self) -> Measure:
        return MEASURES[self.guardrail]

    def next_step(self, share: float) -> RateRail:
        return replace(self, accusation=self.accusation.next_step(share), requests=0)

    def observe(self, window: Window, moment: Moment) -> RateRail:
        """Settle the window's bets."""
        if not (moment.is_steady or self.measure.counts_warmup):
            return self
        stable, canary = self.measure.of(window.stable), self.measure.of(window.canary)
        grown = replace(
            self,
            stable=self.stable + stable,
            canary=self.canary + canary,
            requests=self.requests + canary.trials,
        )
        if not stable.trials or not canary.trials:
            return grown
        factors = log_factors(canary, stable, margin=self.limit, seen=self.stable)
        return replace(grown, accusation=self.accusation.settle(factors, is_promoted=moment.is_promoted))

    def proof(self, budget: Budget) -> Proof:
        return self.accusation.proof(budget)

    def judge(self, stage: Stage, budget: Budget) -> Verdict:
        """FAIL on proof of harm, INSUFFICIENT while too few canary requests ended."""
        proof, stable, canary = self.proof(budget), self.stable, self.canary
        seen = (
            f"canary {canary.failures} of {canary.trials}, stable {stable.failures} of {stable.trials} "
            f"{self.measure.what}"
        )
        level, reason, need = Level.PASS, seen, stage.need(windows=stage.windows_needed, requests=self.requests)
        if proof.is_reached:
            margin = f"{self.limit * 100:g} pp"
            level, reason, need = Level.FAIL, f"{self.measure.rise} by more than {margin}: {seen}", Need()
        elif need.samples:
            level, reason = Level.INSUFFICIENT, f"{self.requests} of {stage.requests_needed} canary requests; {seen}"
        estimate, interval = _increase(stable, canary)
        return Verdict(
            self.guardrail,
            level,
            reason,
            "points",
            estimate,
            interval,
            self.limit,
            proof,
            canary.trials,
            need,
            self.accusation.seconds_to_trip(proof, stage),
            (
                Reading("stable", stable.rate, "ratio", stable.trials),
                Reading("canary", canary.rate, "ratio", canary.trials),
            ),
        )


def _increase(stable: Count, canary: Count) -> tuple[float | None, Bounds | None]:
    """Difference of the rates and its interval, each arm at half the error rate."""
    if stable.rate is None or canary.rate is None:
        return None, None
    of_stable = mean_interval(stable.failures, stable.trials, 0.025)
    of_canary = mean_interval(canary.failures, canary.trials, 0.025)
    bounds = of_stable and of_canary and (of_canary[0] - of_stable[1], of_canary[1] - of_stable[0])
    return canary.rate - stable.rate, bounds

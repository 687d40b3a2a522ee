"""Guardrail error_rate: do canary requests fail more often than stable's, by more than the margin?"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from canary.stats.binomial import EXCESSES, Count, log_factors
from canary.stats.detector import EDetector
from canary.stats.eprocess import EProcess
from canary.stats.intervals import mean_interval
from canary.verdict import Level, Need, Proof, Stage, Verdict
from canary.windows import Window, failures


@dataclass(frozen=True, slots=True)
class ErrorEvidence:
    """State of the guardrail."""

    max_increase: float
    stable: Count
    canary: Count
    harm: EProcess
    late: EDetector
    """As `harm`, from promotion on."""
    requests: int = 0
    """Canary requests ended in this step."""

    @classmethod
    def start(cls, max_increase: float, share: float) -> ErrorEvidence:
        bets = len(EXCESSES)
        return cls(max_increase, Count(), Count(), EProcess.start(bets, share), EDetector.start(bets))

    def next_step(self, share: float) -> ErrorEvidence:
        return replace(self, harm=self.harm.stake(share), requests=0)


def observe(evidence: ErrorEvidence, window: Window, *, is_promoted: bool) -> ErrorEvidence:
    """Settle the window's bets; warm-up windows count too, for a request that fails has failed."""
    stable, canary = failures(window.stable), failures(window.canary)
    factors = log_factors(canary, stable, margin=evidence.max_increase, seen=evidence.stable)
    grown = replace(
        evidence,
        stable=evidence.stable + stable,
        canary=evidence.canary + canary,
        requests=evidence.requests + canary.trials,
    )
    if is_promoted:
        return replace(grown, late=evidence.late.update(factors))
    return replace(grown, harm=evidence.harm.update(factors))


def judge(evidence: ErrorEvidence, stage: Stage, *, alpha: float, horizon: float) -> Verdict:
    """FAIL on proof of harm (error rate `alpha`; after promotion over `horizon` windows), INSUFFICIENT while
    too few canary requests ended."""
    if stage.is_promoted:
        proof = Proof(evidence.late.log_e, math.log(horizon / alpha))
    else:
        proof = Proof(evidence.harm.log_e, -math.log(alpha))
    stable, canary = evidence.stable, evidence.canary
    seen = f"canary {canary.failures} of {canary.trials}, stable {stable.failures} of {stable.trials} failed"
    level, reason, need = Level.PASS, seen, stage.need(windows=stage.windows_needed, requests=evidence.requests)
    if proof.is_reached:
        margin = f"{evidence.max_increase * 100:g} pp"
        level, reason, need = Level.FAIL, f"requests fail more often by more than {margin}: {seen}", Need()
    elif need.samples:
        level, reason = Level.INSUFFICIENT, f"{evidence.requests} of {stage.requests_needed} canary requests; {seen}"
    estimate, interval = _increase(stable, canary)
    return Verdict(
        "error_rate", level, reason, "points", estimate, interval, evidence.max_increase, proof, canary.trials, need
    )


def _increase(stable: Count, canary: Count) -> tuple[float | None, tuple[float, float] | None]:
    """Difference of the rates and its interval, each arm at half the error rate."""
    if stable.rate is None or canary.rate is None:
        return None, None
    of_stable = mean_interval(stable.failures, stable.trials, 0.025)
    of_canary = mean_interval(canary.failures, canary.trials, 0.025)
    if of_stable is None or of_canary is None:
        return None, None
    return canary.rate - stable.rate, (of_canary[0] - of_stable[1], of_canary[1] - of_stable[0])

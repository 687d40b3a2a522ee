"""Guardrail itl_p95: does the canary's 95th percentile of time per token exceed stable's by more than the margin?"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from canary.stats.betting import BETS, Tail, log_factors
from canary.stats.detector import EDetector
from canary.stats.eprocess import EProcess
from canary.stats.intervals import quantile_interval
from canary.verdict import Level, Need, Proof, Stage, Verdict
from canary.windows import Window, ended
from fleet.histogram import RELATIVE_ACCURACY, LogHistogram

QUANTILE = 0.95
_BUCKET_WIDTH = math.log((1.0 + RELATIVE_ACCURACY) / (1.0 - RELATIVE_ACCURACY))


@dataclass(frozen=True, slots=True)
class Arm:
    """Everything steady windows have shown of one arm in this attempt."""

    itl: LogHistogram
    requests: int = 0

    def grown(self, itl: LogHistogram, requests: int) -> Arm:
        pooled = LogHistogram()
        pooled.merge(self.itl)
        pooled.merge(itl)
        return Arm(pooled, self.requests + requests)


@dataclass(frozen=True, slots=True)
class LatencyEvidence:
    """State of the guardrail."""

    max_increase: float
    stable: Arm
    canary: Arm
    harm: EProcess
    """Against "no worse by more than the margin"; trips."""
    no_harm: EProcess
    """Against "worse by more than the margin"; lets the last step pass."""
    late: EDetector
    """As `harm`, from promotion on."""
    windows: int = 0
    """Bets settled in this step."""

    @classmethod
    def start(cls, max_increase: float, share: float) -> LatencyEvidence:
        return cls(
            max_increase,
            Arm(LogHistogram()),
            Arm(LogHistogram()),
            EProcess.start(len(BETS), share),
            EProcess.start(len(BETS)),
            EDetector.start(len(BETS)),
        )

    def next_step(self, share: float) -> LatencyEvidence:
        return replace(self, harm=self.harm.stake(share), windows=0)


def observe(evidence: LatencyEvidence, window: Window, *, is_promoted: bool) -> LatencyEvidence:
    """Settle a steady window's bets, then let it into the pool.

    The threshold is stable's pooled p95 over the windows strictly before, so it is known before the
    window; the canary's lies higher by the margin, rounded up to a whole bucket (under 2 %).
    """
    threshold = evidence.stable.itl.quantile_bucket(QUANTILE)
    pooled = replace(
        evidence,
        stable=evidence.stable.grown(window.stable.itl, ended(window.stable)),
        canary=evidence.canary.grown(window.canary.itl, ended(window.canary)),
    )
    if threshold is None or not window.stable.itl.total or not window.canary.itl.total:
        return pooled
    margin = math.ceil(math.log1p(evidence.max_increase) / _BUCKET_WIDTH - 1e-9)
    canary = Tail(window.canary.itl.count_above(threshold + margin), window.canary.itl.total)
    stable = Tail(window.stable.itl.count_above(threshold), window.stable.itl.total)
    harm = log_factors(canary, stable, suspect_is_larger=window.canary_percent > 50)
    no_harm = log_factors(stable, canary, suspect_is_larger=window.canary_percent < 50)
    if is_promoted:
        return replace(pooled, late=evidence.late.update(harm), windows=evidence.windows + 1)
    return replace(
        pooled,
        harm=evidence.harm.update(harm),
        no_harm=evidence.no_harm.update(no_harm),
        windows=evidence.windows + 1,
    )


def judge(evidence: LatencyEvidence, stage: Stage, *, alpha: float, alpha_total: float, horizon: float) -> Verdict:
    """FAIL on proof of harm (error rate `alpha`), INSUFFICIENT without enough windows or, where the stage asks
    for it, without proof of no harm (error rate `alpha_total`); after promotion an alarm of the detector whose
    chance over `horizon` windows is `alpha`."""
    if stage.is_promoted:
        proof = Proof(evidence.late.log_e, math.log(horizon / alpha))
    else:
        proof = Proof(evidence.harm.log_e, -math.log(alpha))
    level, reason, need = _level(evidence, stage, proof, Proof(evidence.no_harm.log_e, -math.log(alpha_total)))
    estimate, interval = _increase(evidence)
    return Verdict(
        "itl_p95",
        level,
        reason,
        "percent",
        estimate,
        interval,
        evidence.max_increase,
        proof,
        evidence.canary.requests,
        need,
    )


def _level(evidence: LatencyEvidence, stage: Stage, harm: Proof, no_harm: Proof) -> tuple[Level, str, Need]:
    limit = f"{evidence.max_increase:.0%}".replace("%", " %")
    if harm.is_reached:
        return Level.FAIL, f"p95 time per token rose by more than {limit}: {_seen(evidence)}", Need()
    if not stage.has_baseline:
        return Level.PASS, "no baseline is left to compare with; the steps before raised no alarm", Need()
    if evidence.windows < stage.windows_needed:
        need = stage.need(windows=evidence.windows, requests=stage.requests_needed)
        return Level.INSUFFICIENT, f"{evidence.windows} of {stage.windows_needed} windows", need
    if stage.needs_proof and not no_harm.is_reached:
        shown = f"evidence {no_harm.e_value:.3g} of {no_harm.threshold:.3g}"
        need = Need(0, _seconds_to_proof(evidence, stage, no_harm))
        return Level.INSUFFICIENT, f"not yet shown to be at most {limit} slower ({shown})", need
    return Level.PASS, _seen(evidence), Need()


def _seconds_to_proof(evidence: LatencyEvidence, stage: Stage, no_harm: Proof) -> float | None:
    """At the mean growth so far; None where the evidence does not grow."""
    if no_harm.log_e <= 0:
        return None
    return (no_harm.log_threshold - no_harm.log_e) / no_harm.log_e * evidence.windows * stage.window_seconds


def _seen(evidence: LatencyEvidence) -> str:
    stable, canary = evidence.stable.itl.quantile(QUANTILE), evidence.canary.itl.quantile(QUANTILE)
    if stable is None or canary is None:
        return "nothing to compare yet"
    return f"canary {canary * 1000:.1f} ms, stable {stable * 1000:.1f} ms"


def _increase(evidence: LatencyEvidence) -> tuple[float | None, tuple[float | None, float | None] | None]:
    """Relative increase of the pooled p95 and its interval, each arm at half the error rate; for reading only."""
    stable, canary = evidence.stable, evidence.canary
    p_stable, p_canary = stable.itl.quantile(QUANTILE), canary.itl.quantile(QUANTILE)
    if p_stable is None or p_canary is None:
        return None, None
    of_stable = quantile_interval(stable.itl, QUANTILE, stable.requests, 0.025)
    of_canary = quantile_interval(canary.itl, QUANTILE, canary.requests, 0.025)
    if of_stable is None or of_canary is None:
        return p_canary / p_stable - 1.0, None
    lower = of_canary[0] / of_stable[1] - 1.0 if of_canary[0] is not None and of_stable[1] is not None else None
    upper = of_canary[1] / of_stable[0] - 1.0 if of_canary[1] is not None and of_stable[0] is not None else None
    return p_canary / p_stable - 1.0, None if lower is None and upper is None else (lower, upper)

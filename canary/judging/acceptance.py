"""Guardrail acceptance: has the share of drafted tokens that are accepted fallen below its floor?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from canary.stats.bounded_mean import STAKES, log_factors
from canary.stats.detector import EDetector
from canary.stats.intervals import mean_interval
from canary.verdict import Level, Need, Proof, Stage, Verdict
from canary.windows import Window
from fleet.histogram import LogHistogram, value_of

CALIBRATION_REQUESTS = 50
_HIGHEST_FLOOR = 0.99


@dataclass(frozen=True, slots=True)
class Sum:
    """Sum of accepted/drafted over so many requests."""

    total: float = 0.0
    count: int = 0

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.total + other.total, self.count + other.count)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass(frozen=True, slots=True)
class AcceptanceEvidence:
    """State of the guardrail."""

    max_decrease: float
    reference: float | None
    """None until it is calibrated."""
    detector: EDetector
    calibration: Sum = Sum()
    seen: Sum = Sum()
    """Of the requests that were judged."""
    requests: int = 0
    """Canary requests with drafted tokens that ended in this step."""

    @classmethod
    def start(cls, max_decrease: float, reference: float | None) -> AcceptanceEvidence:
        return cls(max_decrease, reference, EDetector.start(len(STAKES)))

    @property
    def floor(self) -> float | None:
        if self.reference is None:
            return None
        return min(self.reference * (1.0 - self.max_decrease), _HIGHEST_FLOOR)

    def next_step(self) -> AcceptanceEvidence:
        return replace(self, requests=0)


def observe(evidence: AcceptanceEvidence, window: Window) -> AcceptanceEvidence:
    """Feed the requests that ended in the window.

    The window is one observation of the detector: the product over its requests does not depend on
    their order, which the histogram has lost.
    """
    histogram = window.canary.request_acceptance
    if not histogram.total:
        return evidence
    batch = Sum(histogram.sum - histogram.total, histogram.total)
    grown = replace(evidence, requests=evidence.requests + batch.count)
    if evidence.floor is None:
        return _calibrate(grown, batch)
    if evidence.floor <= 0:
        return replace(grown, seen=evidence.seen + batch)
    factors = log_factors(_values(histogram), evidence.floor)
    return replace(grown, seen=evidence.seen + batch, detector=evidence.detector.update(factors))


def _calibrate(evidence: AcceptanceEvidence, batch: Sum) -> AcceptanceEvidence:
    calibration = evidence.calibration + batch
    reference = calibration.mean if calibration.count >= CALIBRATION_REQUESTS else None
    return replace(evidence, calibration=calibration, reference=reference)


def _values(histogram: LogHistogram) -> Iterable[tuple[float, int]]:
    """Acceptance of each request to within its bucket, shifted so that the mean is exact."""
    rough = sum(value_of(bucket) * count for bucket, count in histogram.counts.items())
    shift = (histogram.sum - rough) / histogram.total
    for bucket, count in histogram.counts.items():
        yield min(max(value_of(bucket) + shift - 1.0, 0.0), 1.0), count


def judge(evidence: AcceptanceEvidence, stage: Stage, *, alpha: float, horizon: float) -> Verdict:
    """FAIL when the detector alarms (chance `alpha` over `horizon` windows at the floor, far less above it),
    INSUFFICIENT while calibrating or while too few requests had a draft."""
    proof = Proof(evidence.detector.log_e, math.log(horizon / alpha))
    level, reason, need = _level(evidence, stage, proof)
    mean = evidence.seen.mean if evidence.seen.count else evidence.calibration.mean
    of = evidence.seen if evidence.seen.count else evidence.calibration
    interval = mean_interval(of.total, of.count, 0.05)
    return Verdict("acceptance", level, reason, "ratio", mean, interval, evidence.floor, proof, of.count, need)


def _level(evidence: AcceptanceEvidence, stage: Stage, proof: Proof) -> tuple[Level, str, Need]:
    floor, mean = evidence.floor, evidence.seen.mean
    if floor is None:
        have = evidence.calibration.count
        missing = CALIBRATION_REQUESTS - have
        seconds = None if stage.request_seconds is None else missing * stage.request_seconds
        return (
            Level.INSUFFICIENT,
            f"calibrating: {have} of {CALIBRATION_REQUESTS} requests with a draft",
            Need(missing, seconds),
        )
    if floor <= 0:
        return Level.INSUFFICIENT, "calibrated at 0: no drafted token was accepted, so there is no floor", Need()
    shown = "no request judged yet" if mean is None else f"{mean:.3f} over {evidence.seen.count} requests"
    if proof.is_reached:
        return Level.FAIL, f"acceptance fell below {floor:.3f}: {shown} since the attempt began", Need()
    need = stage.need(windows=stage.windows_needed, requests=evidence.requests)
    if need.samples:
        reason = f"{evidence.requests} of {stage.requests_needed} requests with a draft; {shown}"
        return Level.INSUFFICIENT, reason, need
    return Level.PASS, f"{shown}, floor {floor:.3f}", need

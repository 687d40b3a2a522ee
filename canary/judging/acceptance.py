"""Guardrail acceptance: has the share of drafted tokens that are accepted fallen, overall or for some requests?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from canary.judging.accusation import Budget, Moment
from canary.limits import AcceptanceDrop
from canary.stats.bounded_mean import STAKES, log_factors
from canary.stats.detector import EDetector
from canary.stats.eprocess import log_weighted_mean_exp
from canary.stats.intervals import mean_interval
from canary.verdict import Level, Need, Proof, Reading, Stage, Verdict
from canary.windows import Window
from fleet.histogram import LogHistogram, value_of
from fleet.traffic import PathTally

CALIBRATION_REQUESTS = 50
ALL = "all"
"""The one stratum where none are told apart."""
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
class Stratum:
    """One kind of request."""

    reference: float | None
    """None until it is calibrated."""
    detector: EDetector
    calibration: Sum = Sum()
    seen: Sum = Sum()
    """Of the requests that were judged."""

    def floor(self, max_decrease: float) -> float | None:
        """Below which acceptance must not fall; None while it is not known, 0 where nothing was ever accepted."""
        return None if self.reference is None else min(self.reference * (1.0 - max_decrease), _HIGHEST_FLOOR)


@dataclass(frozen=True, slots=True)
class AcceptanceRail:
    """State of the guardrail.

    Each stratum has its own floor. The overall detector multiplies the strata's factors, each against its
    own floor, so a shift in the mix of requests moves nothing.
    """

    max_decrease: float
    reference: float | None
    """None where every stratum learns its own."""
    kinds: tuple[Literal["sampling", "prompt"], ...]
    overall: EDetector
    strata: Mapping[str, Stratum]
    requests: int = 0
    """Canary requests with drafted tokens that ended in this step."""
    guardrail: Literal["acceptance"] = "acceptance"
    kind: Literal["acceptance"] = "acceptance"

    @classmethod
    def start(cls, limit: AcceptanceDrop) -> AcceptanceRail:
        reference = None if limit.reference == "calibrate" else limit.reference
        kinds = limit.strata if reference is None else ()
        return cls(limit.max_decrease, reference, kinds, EDetector.start(len(STAKES)), {})

    def next_step(self, _: float) -> AcceptanceRail:
        """A detector has no capital to stake."""
        return replace(self, requests=0)

    def observe(self, window: Window, _: Moment) -> AcceptanceRail:
        """Feed the requests that ended in the window.

        The window is one observation of each detector: the product over its requests does not depend on
        their order, which the histograms have lost.
        """
        batches = _batches(window.canary, self.kinds)
        if not batches:
            return self
        strata, factors = dict(self.strata), []
        for name, histogram in batches.items():
            before = strata.get(name) or Stratum(self.reference, EDetector.start(len(STAKES)))
            strata[name], of_stratum = _fed(before, histogram, self.max_decrease)
            factors += [of_stratum] if of_stratum else []
        together = [sum(parts) for parts in zip(*factors, strict=True)]
        return replace(
            self,
            strata=strata,
            overall=self.overall.update(together) if together else self.overall,
            requests=self.requests + sum(histogram.total for histogram in batches.values()),
        )

    def proof(self, _: Stage, budget: Budget) -> Proof:
        """Half of the weight on all requests together, half on the strata: the mean of detectors is one.

        A stratum that comes later starts from nothing and takes its weight from the others, so the mean never
        gains by it.
        """
        detectors = [stratum.detector.log_e for stratum in self.strata.values() if stratum.seen.count]
        weights = [0.5] + [0.5 / len(detectors)] * len(detectors) if len(detectors) > 1 else [1.0]
        values = [self.overall.log_e, *detectors][: len(weights)]
        return Proof(log_weighted_mean_exp(values, weights), math.log(budget.horizon / budget.alpha))

    def judge(self, stage: Stage, budget: Budget) -> Verdict:
        """FAIL when the detectors alarm (chance `alpha` over `horizon` windows at the floor, far less above it),
        INSUFFICIENT while calibrating or while too few requests had a draft."""
        proof = self.proof(stage, budget)
        level, reason, need = self._level(stage, proof)
        of = self._seen if self._seen.count else self._calibration
        return Verdict(
            self.guardrail,
            level,
            reason,
            "ratio",
            of.mean,
            mean_interval(of.total, of.count, 0.05),
            self._floor,
            proof,
            of.count,
            need,
            readings=tuple(self._reading(name) for name in sorted(self.strata)),
        )

    @property
    def _seen(self) -> Sum:
        return sum((stratum.seen for stratum in self.strata.values()), Sum())

    @property
    def _calibration(self) -> Sum:
        return sum((stratum.calibration for stratum in self.strata.values()), Sum())

    @property
    def _floor(self) -> float | None:
        """Of the requests judged so far, in their own mix; None while nothing is known."""
        known = [(s.floor(self.max_decrease), s.seen.count) for s in self.strata.values()]
        floors = [(floor, count) for floor, count in known if floor is not None]
        if not floors:
            return None if self.reference is None else min(self.reference * (1.0 - self.max_decrease), _HIGHEST_FLOOR)
        weight = sum(count for _, count in floors)
        return sum(floor * count for floor, count in floors) / weight if weight else floors[0][0]

    def _reading(self, name: str) -> Reading:
        stratum = self.strata[name]
        of = stratum.seen if stratum.seen.count else stratum.calibration
        return Reading(name, of.mean, "ratio", of.count, stratum.floor(self.max_decrease))

    def _level(self, stage: Stage, proof: Proof) -> tuple[Level, str, Need]:
        floor, seen, calibration = self._floor, self._seen, self._calibration
        if floor is None:
            missing = CALIBRATION_REQUESTS - max((s.calibration.count for s in self.strata.values()), default=0)
            seconds = None if stage.request_seconds is None else missing * stage.request_seconds
            reason = f"calibrating: {calibration.count} requests with a draft, {CALIBRATION_REQUESTS} of a kind needed"
            return Level.INSUFFICIENT, reason, Need(missing, seconds)
        if floor <= 0:
            return Level.INSUFFICIENT, "calibrated at 0: no drafted token was accepted, so there is no floor", Need()
        shown = "no request judged yet" if seen.mean is None else f"{seen.mean:.3f} over {seen.count} requests"
        if proof.is_reached:
            return (
                Level.FAIL,
                f"acceptance fell below {floor:.3f}: {shown} since the attempt began{self._lowest()}",
                Need(),
            )
        need = stage.need(windows=stage.windows_needed, requests=self.requests)
        if need.samples:
            reason = f"{self.requests} of {stage.requests_needed} requests with a draft; {shown}"
            return Level.INSUFFICIENT, reason, need
        return Level.PASS, f"{shown}, floor {floor:.3f}", need

    def _lowest(self) -> str:
        """The stratum with most evidence, where several are told apart."""
        if len(self.strata) < 2:
            return ""
        name = max(self.strata, key=lambda name: self.strata[name].detector.log_e)
        stratum = self.strata[name]
        return f"; most in {name}: {stratum.seen.mean:.3f}" if stratum.seen.mean is not None else ""


def _batches(tally: PathTally, kinds: tuple[str, ...]) -> Mapping[str, LogHistogram]:
    """The window's requests by stratum, strata merged as far as `kinds` asks for."""
    if not kinds:
        return {ALL: tally.request_acceptance} if tally.request_acceptance.total else {}
    found: dict[str, LogHistogram] = {}
    for name, histogram in sorted(tally.acceptance_by.items()):
        sampling, _, prompt = name.partition("/")
        parts = {"sampling": sampling, "prompt": prompt}
        found.setdefault("/".join(parts[kind] for kind in kinds), LogHistogram()).merge(histogram)
    return found


def _fed(stratum: Stratum, histogram: LogHistogram, max_decrease: float) -> tuple[Stratum, tuple[float, ...] | None]:
    """The stratum after a window, and the factors of its bets if it was judged."""
    batch, floor = Sum(histogram.sum - histogram.total, histogram.total), stratum.floor(max_decrease)
    if floor is None:
        calibration = stratum.calibration + batch
        reference = calibration.mean if calibration.count >= CALIBRATION_REQUESTS else None
        return replace(stratum, calibration=calibration, reference=reference), None
    judged = replace(stratum, seen=stratum.seen + batch)
    if floor <= 0:
        return judged, None
    factors = log_factors(_values(histogram), floor)
    return replace(judged, detector=stratum.detector.update(factors)), factors


def _values(histogram: LogHistogram) -> Iterable[tuple[float, int]]:
    """Acceptance of each request to within its bucket, shifted so that the mean is exact."""
    rough = sum(value_of(bucket) * count for bucket, count in histogram.counts.items())
    shift = (histogram.sum - rough) / histogram.total
    for bucket, count in histogram.counts.items():
        yield min(max(value_of(bucket) + shift - 1.0, 0.0), 1.0), count

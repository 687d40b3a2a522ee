"""Guardrails itl_p95, ttft_p95, tpot_p95, queue_delay: is the canary's p95 above stable's by more than the margin?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from canary.judging.accusation import Accusation, Budget, Moment
from canary.stats.betting import BETS, Tail, log_factors, tail_difference
from canary.stats.eprocess import EProcess
from canary.stats.intervals import quantile_interval
from canary.verdict import Bounds, Level, Need, Proof, Reading, Stage, Verdict
from canary.windows import Window, ended
from fleet.histogram import RELATIVE_ACCURACY, LogHistogram, bucket_of, value_of
from fleet.traffic import PathTally

QUANTILE = 0.95
ARM_ALPHA = 0.025
"""Of each arm's interval, so that both hold together with 95 %."""
_BUCKET_WIDTH = math.log((1.0 + RELATIVE_ACCURACY) / (1.0 - RELATIVE_ACCURACY))


@dataclass(frozen=True, slots=True)
class Measure:
    """What is compared."""

    label: str
    histogram: str
    """Of `PathTally`, in seconds."""
    still_open: str | None = None
    """Histogram of lower bounds for values that are not known yet: each counts, or a hung stream would look perfect."""
    is_absolute: bool = False
    """The margin is in seconds, not relative."""
    is_per_token: bool = False
    """One sample is a request with all its values, not a value."""


MEASURES: Mapping[str, Measure] = {
    "itl_p95": Measure("time per token", "itl", is_per_token=True),
    "ttft_p95": Measure("time to first token", "ttft", still_open="waiting"),
    "tpot_p95": Measure("mean time per output token", "tpot"),
    "queue_delay": Measure("wait for a slot", "queue", is_absolute=True),
}


@dataclass(frozen=True, slots=True)
class Arm:
    """Everything steady windows have shown of one arm in this attempt."""

    values: LogHistogram
    samples: int = 0

    def grown(self, values: LogHistogram, samples: int) -> Arm:
        pooled = self.values.copy()
        pooled.merge(values)
        return Arm(pooled, self.samples + samples)

    @property
    def p95(self) -> float | None:
        return self.values.quantile(QUANTILE)


@dataclass(frozen=True, slots=True)
class QuantileRail:
    """State of one such guardrail."""

    guardrail: str
    limit: float
    """Highest increase that is tolerated, relative or in seconds."""
    accusation: Accusation
    stable: Arm
    canary: Arm
    no_harm: EProcess
    """Against "worse by more than the margin" in this step; lets the last step pass."""
    windows: int = 0
    """Bets settled in this step."""
    kind: Literal["quantile"] = "quantile"

    @classmethod
    def start(cls, guardrail: str, limit: float, share: float) -> QuantileRail:
        bets = len(BETS)
        nothing = Arm(LogHistogram())
        return cls(guardrail, limit, Accusation.start(bets, share), nothing, nothing, EProcess.start(bets))

    @property
    def measure(self) -> Measure:
        return MEASURES[self.guardrail]

    def next_step(self, share: float) -> QuantileRail:
        """What was proven at a small weight says nothing of a large one, so no harm has to be shown anew."""
        fresh = EProcess.start(len(BETS))
        return replace(self, accusation=self.accusation.next_step(share), no_harm=fresh, windows=0)

    def observe(self, window: Window, moment: Moment) -> QuantileRail:
        """Settle a steady window's bets, then let it into the pool.

        The threshold is stable's pooled p95 over the windows strictly before, so it is known before the
        window; the canary's lies higher by the margin, rounded up to a whole bucket (under 2 %).
        """
        if not moment.is_steady:
            return self
        threshold = self.stable.values.quantile_bucket(QUANTILE)
        pooled = replace(
            self,
            stable=self.stable.grown(*_values(window.stable, self.measure)),
            canary=self.canary.grown(*_values(window.canary, self.measure)),
        )
        if threshold is None:
            return pooled
        canary = _tail(window.canary, self.measure, self._raised(threshold))
        stable = _tail(window.stable, self.measure, threshold)
        if not stable.total:
            return self  # as at 100 %: the pools keep what was compared last, or their difference would be the load's
        if not canary.total:
            return pooled
        harm = log_factors(tail_difference(canary, stable, suspect_is_larger=window.canary_percent > 50))
        accusation = self.accusation.settle(harm, is_promoted=moment.is_promoted)
        if moment.is_promoted:
            return replace(pooled, accusation=accusation, windows=self.windows + 1)
        fine = log_factors(tail_difference(stable, canary, suspect_is_larger=window.canary_percent < 50))
        return replace(pooled, accusation=accusation, no_harm=self.no_harm.update(fine), windows=self.windows + 1)

    def _raised(self, threshold: int) -> int:
        """The canary's threshold: a bucket above which values exceed stable's by more than the margin."""
        if self.measure.is_absolute:
            return bucket_of(value_of(threshold) * (1.0 + RELATIVE_ACCURACY) + self.limit)
        return threshold + math.ceil(math.log1p(self.limit) / _BUCKET_WIDTH - 1e-9)

    def proof(self, budget: Budget) -> Proof:
        return self.accusation.proof(budget)

    def judge(self, stage: Stage, budget: Budget) -> Verdict:
        """FAIL on proof of harm, INSUFFICIENT without enough windows or, for itl_p95 where the stage asks for
        it, without proof of no harm at the whole plan's error rate."""
        proof = self.proof(budget)
        level, reason, need = self._level(stage, proof, Proof(self.no_harm.log_e, -math.log(budget.alpha_total)))
        estimate, interval = self._increase()
        return Verdict(
            self.guardrail,
            level,
            reason,
            "seconds" if self.measure.is_absolute else "percent",
            estimate,
            interval,
            self.limit,
            proof,
            self.canary.samples,
            need,
            self.accusation.seconds_to_trip(proof, stage),
            tuple(
                Reading(f"{name} p95", arm.p95, "seconds", arm.samples)
                for name, arm in (("stable", self.stable), ("canary", self.canary))
            ),
        )

    def _level(self, stage: Stage, harm: Proof, no_harm: Proof) -> tuple[Level, str, Need]:
        limit = f"{self.limit * 1000:g} ms" if self.measure.is_absolute else f"{self.limit * 100:g} %"
        if harm.is_reached:
            return Level.FAIL, f"p95 {self.measure.label} rose by more than {limit}: {self._seen()}", Need()
        if not stage.has_baseline:
            return Level.PASS, "no baseline is left to compare with; the steps before raised no alarm", Need()
        if self.windows < stage.windows_needed:
            need = stage.need(windows=self.windows, requests=stage.requests_needed)
            return Level.INSUFFICIENT, f"{self.windows} of {stage.windows_needed} windows", need
        if stage.needs_proof and self.guardrail == "itl_p95" and not no_harm.is_reached:
            shown = f"evidence {no_harm.e_value:.3g} of {no_harm.threshold:.3g}"
            need = Need(0, self._seconds_to_proof(stage, no_harm))
            return Level.INSUFFICIENT, f"not yet shown to be at most {limit} slower ({shown})", need
        return Level.PASS, self._seen(), Need()

    def _seconds_to_proof(self, stage: Stage, no_harm: Proof) -> float | None:
        """At the mean growth so far; None where the evidence does not grow."""
        if no_harm.log_e <= 0:
            return None
        missing = (no_harm.log_threshold - no_harm.log_e) / no_harm.log_e
        return missing * self.windows * stage.window_seconds

    def _seen(self) -> str:
        stable, canary = self.stable.p95, self.canary.p95
        if stable is None or canary is None:
            return "nothing to compare yet"
        return f"canary {canary * 1000:.1f} ms, stable {stable * 1000:.1f} ms"

    def _increase(self) -> tuple[float | None, Bounds | None]:
        """Increase of the pooled p95 and its interval, each arm at half the error rate; for reading only."""
        change = _difference if self.measure.is_absolute else _ratio
        stable, canary = self.stable, self.canary
        estimate = change(canary.p95, stable.p95)
        of_stable = quantile_interval(stable.values, QUANTILE, stable.samples, ARM_ALPHA)
        of_canary = quantile_interval(canary.values, QUANTILE, canary.samples, ARM_ALPHA)
        if of_stable is None or of_canary is None:
            return estimate, None
        lower, upper = change(of_canary[0], of_stable[1]), change(of_canary[1], of_stable[0])
        return estimate, None if lower is None and upper is None else (lower, upper)


def _ratio(canary: float | None, stable: float | None) -> float | None:
    return None if canary is None or stable is None else canary / stable - 1.0


def _difference(canary: float | None, stable: float | None) -> float | None:
    return None if canary is None or stable is None else canary - stable


def _values(tally: PathTally, measure: Measure) -> tuple[LogHistogram, int]:
    values: LogHistogram = getattr(tally, measure.histogram)
    return values, ended(tally) if measure.is_per_token else values.total


def _tail(tally: PathTally, measure: Measure, threshold: int) -> Tail:
    histograms: list[LogHistogram] = [getattr(tally, measure.histogram)]
    if measure.still_open is not None:
        histograms.append(getattr(tally, measure.still_open))
    return Tail(sum(h.count_above(threshold) for h in histograms), sum(h.total for h in histograms))

"""Guardrail acceptance: has the share of drafted tokens that are accepted fallen, overall or for some requests?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from canary.judging.accusation import Budget, Moment
from canary.judging.reference import Reference, shares
from canary.limits import AcceptanceDrop
from canary.stats.bounded_mean import STAKES, log_factors
from canary.stats.detector import EDetector, staked, unstaked
from canary.stats.eprocess import log_weighted_sum_exp
from canary.stats.intervals import mean_interval
from canary.verdict import Level, Need, Proof, Reading, Stage, Verdict
from canary.windows import Window
from fleet.histogram import LogHistogram
from fleet.traffic import PathTally

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

    reference: Reference
    detector: EDetector
    seen: Sum = Sum()

    def floor(self, max_decrease: float) -> float:
        """Below which acceptance must not fall; 0 while nothing is known, and where nothing was ever accepted."""
        return min(self.reference.value * (1.0 - max_decrease), _HIGHEST_FLOOR)


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
    alpha: float
    """Of a false trip, ever: half of it for references that are learned too high, where they are learned."""
    overall: EDetector
    strata: Mapping[str, Stratum]
    rounds: int = 0
    """Windows that were judged in this attempt."""
    requests: int = 0
    """Canary requests with drafted tokens that ended in this step."""
    guardrail: Literal["acceptance"] = "acceptance"
    kind: Literal["acceptance"] = "acceptance"

    @classmethod
    def start(cls, limit: AcceptanceDrop, alpha: float) -> AcceptanceRail:
        reference = None if limit.reference == "calibrate" else limit.reference
        kinds = limit.strata if reference is None else ()
        return cls(limit.max_decrease, reference, kinds, alpha, EDetector.start(len(STAKES)), {})

    def next_step(self, _: float) -> AcceptanceRail:
        """A detector stakes by itself, window by window."""
        return replace(self, requests=0)

    def observe(self, window: Window, _: Moment) -> AcceptanceRail:
        """Feed the requests that ended in the window, against floors from the windows before.

        The window is one observation of each detector: the product over its requests does not depend on
        their order, which the histograms have lost.
        """
        batches = _batches(window.canary, self.kinds)
        if not batches:
            return self
        strata, factors, stake = dict(self.strata), [], staked(self.rounds + 1)
        for name, histogram in batches.items():
            before = strata.get(name) or self._newcomer(len(strata) + 1)
            strata[name], of_stratum = _fed(before, histogram, self.max_decrease, stake)
            factors += [of_stratum] if of_stratum else []
        together = [sum(parts) for parts in zip(*factors, strict=True)]
        return replace(
            self,
            strata=strata,
            overall=self.overall.update(together, stake) if together else self.overall,
            rounds=self.rounds + bool(together),
            requests=self.requests + sum(histogram.total for histogram in batches.values()),
        )

    def _newcomer(self, number: int) -> Stratum:
        """The stratum that came as the `number`-th; all that ever come spend half of alpha on their references."""
        alpha = self.alpha / 2.0 / (number * (number + 1))
        known = Reference(alpha=alpha) if self.reference is None else Reference.given(self.reference)
        return Stratum(known, EDetector.start(len(STAKES)))

    def proof(self, budget: Budget) -> Proof:
        """P(ever reached by a canary that keeps its acceptance) ≤ alpha, however long it waits or is watched.

        Half of the weight on all requests together, half on the strata. All detectors stake by one clock, so a
        round adds at most `staked`; a stratum that comes later begins with nothing and takes its weight from the
        others, so the mean never gains by it; hence it is, with what is not staked yet, a supermartingale. Where
        references are learned, half of alpha was spent on one that is too high (union bound).
        """
        detectors = [stratum.detector.log_r_mean for stratum in self.strata.values() if stratum.seen.count]
        weights = [0.5] + [0.5 / len(detectors)] * len(detectors) if len(detectors) > 1 else [1.0]
        values = [self.overall.log_r_mean, *detectors][: len(weights)]
        log_e = log_weighted_sum_exp([*values, math.log(unstaked(self.rounds))], [*weights, 1.0])
        return Proof(log_e, -math.log(budget.alpha if self.reference is not None else budget.alpha / 2.0))

    def judge(self, stage: Stage, budget: Budget) -> Verdict:
        """FAIL when the evidence suffices, INSUFFICIENT while no reference is settled or few requests had a draft."""
        proof, seen = self.proof(budget), self._seen
        level, reason, need = self._level(stage, proof)
        return Verdict(
            self.guardrail,
            level,
            reason,
            "ratio",
            seen.mean,
            mean_interval(seen.total, seen.count, 0.05),
            self._floor,
            proof,
            seen.count,
            need,
            readings=tuple(self._reading(name) for name in sorted(self.strata)),
        )

    @property
    def _seen(self) -> Sum:
        return sum((stratum.seen for stratum in self.strata.values()), Sum())

    @property
    def _floor(self) -> float | None:
        """Of the requests seen so far, in their own mix; None while none is known."""
        floors = [(stratum.floor(self.max_decrease), stratum.seen.count) for stratum in self.strata.values()]
        if not floors:
            return None if self.reference is None else min(self.reference * (1.0 - self.max_decrease), _HIGHEST_FLOOR)
        return sum(floor * count for floor, count in floors) / sum(count for _, count in floors)

    def _reading(self, name: str) -> Reading:
        stratum = self.strata[name]
        return Reading(name, stratum.seen.mean, "ratio", stratum.seen.count, stratum.floor(self.max_decrease))

    def _level(self, stage: Stage, proof: Proof) -> tuple[Level, str, Need]:
        seen, floor = self._seen, self._floor or 0.0
        shown = "no request judged yet" if seen.mean is None else f"{seen.mean:.3f} over {seen.count} requests"
        if proof.is_reached:
            told = f"acceptance fell below {floor:.3f}: {shown} since the attempt began{self._lowest()}"
            return Level.FAIL, told, Need()
        settled = [stratum for stratum in self.strata.values() if stratum.reference.is_settled]
        if self.reference is None and not settled:
            return self._learning(stage)
        if floor <= 0 and settled:
            return Level.INSUFFICIENT, "calibrated at 0: no drafted token was accepted, so there is no floor", Need()
        need = stage.need(windows=stage.windows_needed, requests=self.requests)
        if need.samples:
            reason = f"{self.requests} of {stage.requests_needed} requests with a draft; {shown}"
            return Level.INSUFFICIENT, reason, need
        return Level.PASS, f"{shown}, floor {floor:.3f}", need

    def _learning(self, stage: Stage) -> tuple[Level, str, Need]:
        """The kind of which least is missing decides how long it takes."""
        references = [stratum.reference for stratum in self.strata.values()] or [Reference()]
        missing = min(reference.missing(self.max_decrease) for reference in references)
        seconds = None if stage.request_seconds is None else missing * stage.request_seconds
        reason = f"calibrating: {self._seen.count} requests with a draft, about {missing} more of a kind needed"
        return Level.INSUFFICIENT, reason, Need(missing, seconds)

    def _lowest(self) -> str:
        """The stratum with most evidence, where several are told apart."""
        if len(self.strata) < 2:
            return ""
        name = max(self.strata, key=lambda name: self.strata[name].detector.log_r_mean)
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


def _fed(
    stratum: Stratum, histogram: LogHistogram, max_decrease: float, stake: float
) -> tuple[Stratum, tuple[float, ...] | None]:
    """The stratum after a window, and the factors of its bets if it had a floor before."""
    batch, floor = Sum(histogram.sum - histogram.total, histogram.total), stratum.floor(max_decrease)
    after = replace(stratum, seen=stratum.seen + batch, reference=stratum.reference.learn(histogram, max_decrease))
    if floor <= 0:
        return after, None
    factors = log_factors(shares(histogram), floor)
    return replace(after, detector=stratum.detector.update(factors, stake)), factors

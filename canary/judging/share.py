"""Guardrails stall, completion_lag, kv_pressure: is a share that each window shows higher on the canary?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from canary.judging.accusation import Accusation, Budget, Moment
from canary.judging.pooled import Pooled, readings
from canary.stats.betting import BETS, CAP, log_factors, share_difference
from canary.stats.running_mean import ClippedMean
from canary.verdict import Level, Need, Proof, Stage, Verdict
from canary.windows import ArmUsage, Window, ended
from fleet.traffic import PathTally


@dataclass(frozen=True, slots=True)
class Share:
    """Of so many things in one arm and window."""

    value: float
    """0 to 1."""
    count: int

    @property
    def pooled(self) -> Pooled:
        return Pooled(self.value, 1.0, self.count)


@dataclass(frozen=True, slots=True)
class Measure:
    """What is compared."""

    label: str
    of: Callable[[PathTally, ArmUsage], Share | None]
    """None where the arm has nothing to show in the window."""


def _stall(tally: PathTally, _: ArmUsage) -> Share | None:
    stall = tally.stall
    return Share(min(max(stall.sum / stall.total - 1.0, 0.0), 1.0), stall.total) if stall.total else None


def _lag(tally: PathTally, usage: ArmUsage) -> Share | None:
    at_risk = ended(tally) + usage.open_requests
    return Share(usage.open_requests / at_risk, at_risk) if at_risk else None


def _pressure(_: PathTally, usage: ArmUsage) -> Share | None:
    return Share(usage.pressed / usage.samples, usage.samples) if usage.samples else None


MEASURES: Mapping[str, Measure] = {
    "stall": Measure("time in which a reader waits for text", _stall),
    "completion_lag": Measure("requests still open at the end of a window, of those that could have ended", _lag),
    "kv_pressure": Measure("time with a nearly full KV cache", _pressure),
}


@dataclass(frozen=True, slots=True)
class ShareRail:
    """State of one such guardrail."""

    guardrail: str
    limit: float
    """Highest difference that is tolerated, 0 to 1."""
    accusation: Accusation
    stable: Pooled = field(default_factory=Pooled)
    canary: Pooled = field(default_factory=Pooled)
    difference: ClippedMean = field(default_factory=lambda: ClippedMean(CAP))
    """Of the windows' shares, canary less stable."""
    windows: int = 0
    """Bets settled in this step."""
    kind: Literal["share"] = "share"

    @classmethod
    def start(cls, guardrail: str, limit: float, share: float) -> ShareRail:
        return cls(guardrail, limit, Accusation.start(len(BETS), share))

    @property
    def measure(self) -> Measure:
        return MEASURES[self.guardrail]

    def next_step(self, share: float) -> ShareRail:
        return replace(self, accusation=self.accusation.next_step(share), windows=0)

    def observe(self, window: Window, moment: Moment) -> ShareRail:
        """Settle a steady window's bet, where both arms show something."""
        canary = self.measure.of(window.canary, window.canary_usage)
        stable = self.measure.of(window.stable, window.stable_usage)
        if not moment.is_steady or canary is None or stable is None:
            return self
        difference = share_difference(
            canary.value,
            stable.value,
            margin=self.limit,
            usual=1.0 if self.stable.mean is None else self.stable.mean,
            suspect_is_larger=window.canary_percent > 50,
        )
        return replace(
            self,
            stable=self.stable + stable.pooled,
            canary=self.canary + canary.pooled,
            difference=self.difference.update(canary.value - stable.value),
            accusation=self.accusation.settle(log_factors(difference), is_promoted=moment.is_promoted),
            windows=self.windows + 1,
        )

    def proof(self, budget: Budget) -> Proof:
        return self.accusation.proof(budget)

    def judge(self, stage: Stage, budget: Budget) -> Verdict:
        """FAIL on proof of a difference beyond the limit, INSUFFICIENT without enough windows."""
        proof = self.proof(budget)
        level, reason, need = self._level(stage, proof)
        means = self.canary.mean, self.stable.mean
        return Verdict(
            self.guardrail,
            level,
            reason,
            "points",
            None if means[0] is None or means[1] is None else means[0] - means[1],
            self.difference.interval,
            self.limit,
            proof,
            self.canary.count,
            need,
            self.accusation.seconds_to_trip(proof, stage),
            readings(self.stable, self.canary, "ratio"),
        )

    def _level(self, stage: Stage, proof: Proof) -> tuple[Level, str, Need]:
        if proof.is_reached:
            return (
                Level.FAIL,
                f"{self.measure.label}: rose by more than {self.limit * 100:g} pp, {self._seen()}",
                Need(),
            )
        if not stage.has_baseline:
            return Level.PASS, "no baseline is left to compare with; the steps before raised no alarm", Need()
        if self.windows < stage.windows_needed:
            need = stage.need(windows=self.windows, requests=stage.requests_needed)
            return Level.INSUFFICIENT, f"{self.windows} of {stage.windows_needed} windows; {self._seen()}", need
        return Level.PASS, self._seen(), Need()

    def _seen(self) -> str:
        if self.stable.mean is None or self.canary.mean is None:
            return "nothing to compare yet"
        return f"canary {self.canary.mean:.1%}, stable {self.stable.mean:.1%}"

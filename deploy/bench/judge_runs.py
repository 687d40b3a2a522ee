"""How does the judge fare on simulated rollouts: how often is it wrong, and how soon is it right?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from canary.plan import Plan, read_plan
from canary.pseudo_rollout import Trip, walk
from canary.windows import Window
from deploy.bench.judge_rivals import RankTest, Threshold
from deploy.bench.judge_traffic import SLICE_SECONDS, Harm, Shocks, Slice, Traffic, window_of

WINDOW_SECONDS = 30.0
_SLICES = round(WINDOW_SECONDS / SLICE_SECONDS)
STEPS: list[dict[str, Any]] = [
    {"weight": 5, "bake": "10m"},
    {"weight": 25, "bake": "10m"},
    {"weight": 50, "bake": "20m"},
    {"weight": 100},
]
LIMITS: dict[str, Any] = {
    "itl_p95": {"max_increase": "10%"},
    "ttft_p95": {"max_increase": "15%"},
    "tpot_p95": {"max_increase": "10%"},
    "queue_delay": {"max_increase": "200ms"},
    "gap_p99": {"max": "250ms"},
    "stall": {"max_increase": "5pp"},
    "error_rate": {"max_increase": "0.5pp"},
    "cancel_rate": {"max_increase": "2pp"},
    "completion_lag": {"max_increase": "10pp"},
    "kv_pressure": {"max_increase": "10pp"},
    "peak_throughput": {"max_decrease": "5%"},
    "acceptance": {"max_decrease": "10%", "reference": 0.7},
}


def plan_with(guardrails: dict[str, Any], steps: list[dict[str, Any]], **more: Any) -> Plan:
    return read_plan({"stable": "baseline", "canary": "speculative", "steps": steps, "guardrails": guardrails} | more)


def alone(guardrail: str, limit: dict[str, Any], steps: list[dict[str, Any]]) -> Plan:
    """One guardrail with the part of alpha that it has beside all the others: what trips then is what is meant."""
    whole = plan_with(LIMITS, steps)
    return plan_with({guardrail: LIMITS[guardrail] | limit}, steps, alpha=whole.alpha_each)


@dataclass(frozen=True, slots=True)
class Setting:
    """The traffic of one row."""

    requests_per_second: float
    shocks: Shocks = field(default_factory=Shocks)
    harm: Harm = field(default_factory=Harm)
    is_peak: bool = False

    def traffic(self, seed: list[int]) -> Traffic:
        source = np.random.default_rng(seed)
        return Traffic(source, self.requests_per_second, self.shocks, self.harm, self.is_peak)


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    """Of so many rollouts of a canary that is no different, how many each judge took back."""

    runs: int
    ours: int
    threshold: int
    rank_test: int


def false_alarms(setting: Setting, plan: Plan, *, runs: int, seed: int) -> FalseAlarms:
    """Ours looks at every window, the rivals at every slice of the same streams, each until its first alarm."""
    ours = threshold = ranked = 0
    weights = [step.weight for step in plan.steps for _ in range(round(step.bake / plan.window))]
    for run in range(runs):
        stream = _Stream(setting.traffic([seed, run]))
        trip = walk(plan, stream.window_at)
        for weight in weights[stream.windows :]:
            stream.window_at(stream.windows, weight)
        ours += trip is not None
        threshold += stream.threshold_alarmed
        ranked += stream.rank_alarmed
    return FalseAlarms(runs, ours, threshold, ranked)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one rollout of a harmful canary went."""

    trip: Trip | None
    harmless: int
    """Windows that had closed before any harm was done."""

    @property
    def is_false(self) -> bool:
        """Taken back for what was no harm yet."""
        return self.trip is not None and self.trip.windows <= self.harmless

    @property
    def windows_to_find(self) -> int | None:
        """From the first one with harm in it; None where it was not found, or taken back before."""
        return None if self.trip is None or self.is_false else self.trip.windows - self.harmless


def outcomes(setting: Setting, plan: Plan, *, runs: int, seed: int, watched: int = 0) -> list[Outcome]:
    """Whole rollouts, each with so many windows after promotion."""
    found = []
    for run in range(runs):
        traffic, harmless = setting.traffic([seed, run]), 0

        def window_at(number: int, weight: float, traffic: Traffic = traffic) -> Window:
            nonlocal harmless
            slices = []
            for _ in range(_SLICES):
                is_harmful = traffic.is_harmful
                slices.append(traffic.slice(weight))
            if not is_harmful:
                harmless = number + 1
            return window_of(slices, weight)

        trip = walk(plan, window_at, watched=watched)
        found.append(Outcome(trip, harmless))
    return found


class _Stream:
    """One run's slices, shown to everybody."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._threshold, self._rank_test = Threshold(), RankTest()
        self.threshold_alarmed = self.rank_alarmed = False
        self.windows = 0

    def window_at(self, _: int, weight: float) -> Window:
        slices = [self._traffic.slice(weight) for _ in range(_SLICES)]
        for item in slices:
            self._show(item)
        self.windows += 1
        return window_of(slices, weight)

    def _show(self, item: Slice) -> None:
        if not self.threshold_alarmed:
            self.threshold_alarmed = self._threshold.alarms(item)
        if not self.rank_alarmed:
            self.rank_alarmed = self._rank_test.alarms(item)

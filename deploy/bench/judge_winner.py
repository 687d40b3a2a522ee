"""Is a speculative arm kept where its readers are served faster, although each of its steps takes longer?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from canary.events import CapacityChanged, Event, RolloutStarted, SplitApplied, Ticked, WindowClosed
from canary.rollout import advance
from canary.rollout_state import begin
from canary.windows import Window
from fleet.histogram import LogHistogram
from fleet.traffic import PathTally
from router.stopwatch import Stopwatch

BASELINE_STEP, SPECULATIVE_STEP = 0.020, 0.031
DRAFT_TOKENS = 4
STREAMS = 200
"""Different ones per path; each window draws from them."""
TOKENS = 96
PER_WINDOW = 40
"""Requests of each arm and window."""
WINDOW_SECONDS = 30.0
PLAN: dict[str, Any] = {
    "stable": "baseline",
    "canary": "speculative",
    "steps": [{"weight": 50, "bake": "60m"}, {"weight": 100}],
    "guardrails": {
        "itl_p95": {"max_increase": "5%"},
        "tpot_p95": {"max_increase": "10%"},
        "gap_p99": {"max": "250ms"},
        "stall": {"max_increase": "5pp"},
    },
}


@dataclass(frozen=True, slots=True)
class Fate:
    """How a rollout went."""

    state: str
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The arms' figures, canary divided by stable."""

    gap_p95: float
    itl_p95: float
    tpot_p50: float


def streams(source: np.random.Generator, step_seconds: float, acceptance: float | None) -> list[PathTally]:
    """One tally per stream: steps vary by 5 %, one in a hundred takes 60 ms longer. Without an acceptance every
    step brings one token; with one it brings what is accepted of four, and one more."""
    return [_stream(source, step_seconds, acceptance) for _ in range(STREAMS)]


def _stream(source: np.random.Generator, step_seconds: float, acceptance: float | None) -> PathTally:
    watch, tally, at = Stopwatch(0.0), PathTally(assigned=1, outcomes={"done": 1}), 0.2
    while watch.tokens < TOKENS:
        lap = watch.lap(at, 1 if acceptance is None else 1 + _accepted(source, acceptance))
        if lap.gap is not None:
            tally.gap.add(lap.gap)
        for value in lap.itl:
            tally.itl.add(value)
        at += step_seconds * (1.0 + 0.05 * float(source.standard_normal())) + 0.060 * (source.random() < 0.01)
    tally.tpot.add(watch.tpot or 0.0)
    tally.stall.add(1.0 + (watch.stall or 0.0))
    return tally


def _accepted(source: np.random.Generator, acceptance: float) -> int:
    coins = source.random(DRAFT_TOKENS) < acceptance
    return DRAFT_TOKENS if coins.all() else int(np.argmin(coins))


def compare(stable: Sequence[PathTally], canary: Sequence[PathTally]) -> Comparison:
    """Over all streams of both paths."""

    def ratio(name: str, q: float) -> float:
        values = []
        for arm in (canary, stable):
            pooled = LogHistogram()
            for tally in arm:
                pooled.merge(getattr(tally, name))
            values.append(pooled.quantile(q) or float("nan"))
        return values[0] / values[1]

    return Comparison(ratio("gap", 0.95), ratio("itl", 0.95), ratio("tpot", 0.5))


def fate(source: np.random.Generator, stable: Sequence[PathTally], canary: Sequence[PathTally]) -> Fate:
    """A whole rollout through the real state machine, on windows drawn from these streams."""
    rollout = begin(RolloutStarted(0.0, "speculative-1", PLAN))
    at = 0.0
    opening: list[Event] = [CapacityChanged(0.0, 2, 2), SplitApplied(0.0, 2, 1, 0.1)]
    for event in opening:
        rollout, _ = advance(rollout, event)
    for _ in range(round(4 * 3600 / WINDOW_SECONDS)):
        at += WINDOW_SECONDS
        window = Window(WINDOW_SECONDS, rollout.weight, _drawn(source, stable), _drawn(source, canary))
        for event in (WindowClosed(at, window), Ticked(at)):
            rollout, orders = advance(rollout, event)
            if orders:
                rollout, _ = advance(rollout, SplitApplied(at, 3, 1, 0.1))
        if rollout.is_over:
            break
    return Fate(rollout.state.value, at, rollout.reason)


def _drawn(source: np.random.Generator, arm: Sequence[PathTally]) -> PathTally:
    found = PathTally()
    for index in source.integers(0, len(arm), PER_WINDOW):
        found.merge(arm[index])
    return found

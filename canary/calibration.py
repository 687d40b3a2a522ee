"""How often would this judge take back a canary that is no different? Many A/A rollouts from recorded windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from scipy.stats import beta

from canary.guardrails import Evidence, Rail, observe
from canary.judging.acceptance import AcceptanceRail
from canary.judging.split import SplitRail
from canary.plan import Plan
from canary.power import fewest_windows, judged_windows
from canary.pseudo_rollout import Trip, walk
from canary.windows import ArmUsage, Window
from fleet.errors import ConfigError
from fleet.traffic import PathTally, control_percent

BLOCK_WINDOWS = 10
"""Recorded windows that stay in their order, so that what lasts for minutes still lasts."""
MULTIPLES = (1, 2, 4, 8)
"""Lengths of a window that are tried, in recorded windows."""
CONFIDENCE = 0.95
ON_REPLICAS = ("completion_lag", "kv_pressure", "peak_throughput")
"""Guardrails on what a path's replicas do or have open."""
POWER = 2
"""A window is tried while the plan has so many times the windows that the worst canary takes to be found: with
fewer no rollout is taken back, good or bad."""


class Arm(StrEnum):
    """What plays the canary."""

    CONTROL = "control"
    """Stable's second sample of users, which every rollout records."""
    CANARY = "canary"
    """The canary itself, of a rollout between two paths that are set up alike: sees host effects too."""


class Fitness(StrEnum):
    """Whether the judge may act alone on such traffic."""

    FIT = "fit"
    """The rate is at most alpha, even at the upper end of its interval."""
    UNDECIDED = "undecided"
    UNFIT = "unfit"
    """The rate is above alpha, even at the lower end of its interval."""


@dataclass(frozen=True, slots=True)
class Rate:
    """False rollbacks with one length of the window."""

    window_seconds: float
    runs: int
    rollbacks: int
    lower: float
    """One-sided Clopper-Pearson bounds of the rate, each at 95 %."""
    upper: float
    by_guardrail: dict[str, int]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What many A/A rollouts showed."""

    fitness: Fitness
    chosen_seconds: float | None
    """The shortest window that is fit."""
    alpha: float
    rates: tuple[Rate, ...]
    recorded_windows: int
    lengths: float
    """Recorded time in lengths of the planned rollout: below a few the runs repeat one another."""
    untried: tuple[str, ...]
    """Guardrails of the plan that the record says nothing of: fitness is not said of them."""


def twins(windows: Sequence[Window], arm: Arm) -> list[Window]:
    """Windows whose two arms are samples of one path; those in which one of them is empty are left out."""
    found = [_control_twin(window) if arm is Arm.CONTROL else window for window in windows]
    return [window for window in found if window.canary.assigned and window.stable.assigned]


def _control_twin(window: Window) -> Window:
    """The control against the rest of stable; replicas serve both, so what is known of them is left out."""
    rest = PathTally()
    rest.merge(window.stable)
    rest.merge(window.control, times=-1)
    share = control_percent(window.canary_percent) / max(1e-9, 100.0 - window.canary_percent)
    return replace(
        window,
        stable=rest,
        canary=window.control,
        canary_percent=100.0 * share,
        stable_usage=ArmUsage(),
        canary_usage=ArmUsage(),
    )


def calibrate(plan: Plan, recorded: Sequence[Window], *, runs: int, seed: int) -> Calibration:
    """Judge `runs` A/A rollouts for each length of the window, until one is fit. Raises ConfigError on too little data.

    A run is made of blocks drawn from the record (moving-block bootstrap; Künsch, Annals of Statistics
    17(3), 1989), with the arms' names exchanged for the whole run in half of the runs, as the null
    hypothesis knows no difference between them. With a holdback it is watched as long again after its steps.
    """
    if len(recorded) < 2 * BLOCK_WINDOWS:
        raise ConfigError(
            f"{len(recorded)} recorded windows at a steady weight have requests in both arms that are compared; "
            f"calibrating needs {2 * BLOCK_WINDOWS}: record more traffic, or use longer windows"
        )
    base = float(np.median([window.seconds for window in recorded]))
    rates: list[Rate] = []
    for multiple in MULTIPLES:
        tried = plan.model_copy(update={"window": multiple * base})
        if judged_windows(tried) < POWER * fewest_windows(tried):
            break
        rates.append(_rate(tried, recorded, multiple, np.random.default_rng([seed, multiple]), runs))
        if rates[-1].upper <= plan.alpha:
            break
    if not rates:
        raise ConfigError(
            f"the plan's bakes hold {judged_windows(tried)} judged windows of {base:g}s, and it takes "
            f"{fewest_windows(tried)} of the worst ones to find anything: bake longer"
        )
    return Calibration(
        _fitness(rates, plan.alpha),
        rates[-1].window_seconds if rates[-1].upper <= plan.alpha else None,
        plan.alpha,
        tuple(rates),
        len(recorded),
        len(recorded) * base / max(base, sum(step.bake for step in plan.steps)),
        untried(plan, recorded),
    )


def untried(plan: Plan, recorded: Sequence[Window]) -> tuple[str, ...]:
    """Guardrails of the plan that never bet on these windows, or only on what is left out of them."""
    evidence = Evidence.start(plan)
    for window in recorded:
        evidence = observe(evidence, plan, window, is_promoted=False)
    is_blank = all(window.canary_usage == ArmUsage() for window in recorded)
    return tuple(
        rail.guardrail for rail in evidence.rails if not _has_bet(rail) or (is_blank and rail.guardrail in ON_REPLICAS)
    )


def _has_bet(rail: Rail) -> bool:
    match rail:
        case AcceptanceRail():
            return rail.rounds > 0
        case SplitRail():
            return True
        case _:
            return rail.accusation.bets > 0


def _fitness(rates: Sequence[Rate], alpha: float) -> Fitness:
    if rates[-1].upper <= alpha:
        return Fitness.FIT
    return Fitness.UNFIT if all(rate.lower > alpha for rate in rates) else Fitness.UNDECIDED


def _rate(plan: Plan, recorded: Sequence[Window], multiple: int, source: np.random.Generator, runs: int) -> Rate:
    trips = [trip for _ in range(runs) if (trip := _run(plan, recorded, multiple, source)) is not None]
    lower, upper = rate_bounds(len(trips), runs)
    by_guardrail: dict[str, int] = {}
    for trip in trips:
        by_guardrail[trip.guardrail] = by_guardrail.get(trip.guardrail, 0) + 1
    return Rate(plan.window, runs, len(trips), lower, upper, by_guardrail)


def _run(plan: Plan, recorded: Sequence[Window], multiple: int, source: np.random.Generator) -> Trip | None:
    is_exchanged = bool(source.integers(2))
    stream = _resampled(recorded, source)

    def window_at(_: int, __: float) -> Window:
        window = _joined([next(stream) for _ in range(multiple)])
        return _exchanged(window) if is_exchanged else window

    bakes = sum(round(step.bake / plan.window) for step in plan.steps)
    return walk(plan, window_at, watched=bakes if plan.holdback > 0 else 0)


def _resampled(recorded: Sequence[Window], source: np.random.Generator) -> Iterator[Window]:
    while True:
        start = int(source.integers(len(recorded) - BLOCK_WINDOWS + 1))
        yield from recorded[start : start + BLOCK_WINDOWS]


def _joined(windows: Sequence[Window]) -> Window:
    """One window over all of them."""
    if len(windows) == 1:
        return windows[0]
    stable, canary = PathTally(), PathTally()
    stable_usage, canary_usage = ArmUsage(), ArmUsage()
    for window in windows:
        stable.merge(window.stable)
        canary.merge(window.canary)
        stable_usage += window.stable_usage
        canary_usage += window.canary_usage
    return replace(
        windows[0],
        seconds=sum(window.seconds for window in windows),
        stable=stable,
        canary=canary,
        stable_usage=stable_usage,
        canary_usage=canary_usage,
    )


def _exchanged(window: Window) -> Window:
    return replace(
        window,
        canary_percent=100.0 - window.canary_percent,
        stable=window.canary,
        canary=window.stable,
        stable_usage=window.canary_usage,
        canary_usage=window.stable_usage,
    )


def rate_bounds(hits: int, runs: int) -> tuple[float, float]:
    """Lower and upper one-sided 95 % bounds of a probability (Clopper & Pearson, Biometrika 26, 1934)."""
    lower = float(beta.ppf(1.0 - CONFIDENCE, hits, runs - hits + 1)) if hits else 0.0
    upper = float(beta.ppf(CONFIDENCE, hits + 1, runs - hits)) if hits < runs else 1.0
    return lower, upper

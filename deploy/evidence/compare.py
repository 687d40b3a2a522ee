"""What changed between two matrices, and is it more than noise?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table
from scipy.stats import ttest_ind

from deploy.evidence.bootstrap import MIN_ROUNDS, holm
from deploy.evidence.result import CellResult, MatrixResult, RoundMeans
from fleet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one cell in two runs."""

    cell: str
    what: str
    """gain (candidate against baseline within each run), baseline or candidate (each against its earlier self)."""
    before: float
    after: float
    """Geometric means over rounds: a ratio, seconds, or tokens per second."""
    p: float
    """Two-sided, corrected for everything that is compared (Holm); 1 where there are too few rounds."""

    @property
    def ratio(self) -> float:
        return self.after / self.before


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs side by side."""

    changes: tuple[Change, ...]
    verdicts: tuple[tuple[str, str, str], ...]
    """(cell, before, after) where the verdict is another one."""
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    settings: tuple[str, ...]
    """Keys of the config that differ."""
    alpha: float


_FIGURES: dict[str, Callable[[RoundMeans], float]] = {
    "gain": lambda item: item.baseline_objective / item.candidate_objective,
    "baseline": lambda item: item.baseline_objective,
    "candidate": lambda item: item.candidate_objective,
}


def compare(before: MatrixResult, after: MatrixResult) -> Comparison:
    """Cell by cell, by candidate and condition.

    Rounds are the unit: Welch's t-test on their logarithms. The gain is taken within each run, so a slower machine
    cancels in it; baseline and candidate alone also show what the machine did between the runs. Raises `ConfigError`
    where the runs were judged by different metrics.
    """
    if before.objective != after.objective:
        raise ConfigError(f"one run is judged by {before.objective}, the other by {after.objective}")
    old, new = _by_name(before), _by_name(after)
    common = [name for name in old if name in new]
    is_rate = before.objective == "throughput"
    raw = [_change(name, what, old[name], new[name], is_rate) for name in common for what in _FIGURES]
    corrected = holm([change.p for change in raw])
    return Comparison(
        changes=tuple(
            Change(change.cell, change.what, change.before, change.after, p)
            for change, p in zip(raw, corrected, strict=True)
            if not math.isnan(change.before) and not math.isnan(change.after)
        ),
        verdicts=tuple(
            (name, old[name].verdict.decision.value, new[name].verdict.decision.value)
            for name in common
            if old[name].verdict.decision is not new[name].verdict.decision
        ),
        only_before=tuple(name for name in old if name not in new),
        only_after=tuple(name for name in new if name not in old),
        settings=tuple(
            sorted(key for key in before.config | after.config if before.config.get(key) != after.config.get(key))
        ),
        alpha=max(before.alpha, after.alpha),
    )


def _by_name(result: MatrixResult) -> dict[str, CellResult]:
    return {f"{cell.candidate}, {cell.sampling} at {cell.level.text}": cell for cell in result.cells}


def _change(name: str, what: str, before: CellResult, after: CellResult, is_rate: bool) -> Change:
    old, new = (_logs(cell.rounds, what, is_rate) for cell in (before, after))
    p = 1.0
    if min(len(old), len(new)) >= MIN_ROUNDS and (np.ptp(old) > 0 or np.ptp(new) > 0):
        p = float(ttest_ind(old, new, equal_var=False).pvalue)
    return Change(name, what, _geometric(old), _geometric(new), p)


def _logs(rounds: Sequence[RoundMeans], what: str, is_rate: bool) -> list[float]:
    """Above 0 the gain is good: of a rate it is the candidate's over the baseline's, of a latency the other way."""
    sign = -1.0 if is_rate and what == "gain" else 1.0
    return [sign * math.log(_FIGURES[what](item)) for item in rounds]


def _geometric(logs: Sequence[float]) -> float:
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def render_comparison(comparison: Comparison, objective: str) -> Table:
    """One row per figure; what is more than noise is marked."""
    table = Table("cell", "figure", "before", "after", "change", "p", "", title=f"judged by {objective}")
    for change in comparison.changes:
        is_real = change.p <= comparison.alpha
        shown = (_shown(value, change.what, objective) for value in (change.before, change.after))
        word = "changed" if is_real else "within the noise"
        row = (change.cell, change.what, *shown, f"{change.ratio - 1:+.1%}", f"{change.p:.3f}", word)
        table.add_row(*row, style="bold" if is_real else "")
    return table


def remarks(comparison: Comparison) -> list[str]:
    """What the table does not say, one line each."""
    lines = [f"verdict on {cell}: {before} → {after}" for cell, before, after in comparison.verdicts]
    lines += [f"only in the first run: {name}" for name in comparison.only_before]
    lines += [f"only in the second run: {name}" for name in comparison.only_after]
    if comparison.settings:
        lines.append(f"the runs differ in their settings: {', '.join(comparison.settings)}")
    if not comparison.changes:
        lines.append("the two runs have no cell with measured rounds in common")
    elif not any(change.p <= comparison.alpha for change in comparison.changes):
        lines.append("nothing changed by more than the noise between rounds")
    return lines


def _shown(value: float, what: str, objective: str) -> str:
    if what == "gain":
        return f"{value:.2f}×"
    return f"{value:.1f} tok/s" if objective == "throughput" else f"{value * 1000:.2f} ms"

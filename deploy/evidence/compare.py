"""What changed between two matrices, and is it more than noise?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.table import Table
from scipy.stats import ttest_ind

from canary.evidence import changes
from deploy.evidence.bootstrap import MIN_ROUNDS, holm
from deploy.evidence.result import CellResult, MatrixResult, RoundMeans
from fleet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one cell in two runs."""

    cell: str
    what: str
    """gain in a metric (candidate against baseline within each run); baseline or candidate: each against its earlier
    self, in the objective."""
    before: float
    after: float
    """Geometric means over rounds: a ratio, seconds, or tokens per second."""
    p: float | None
    """Two-sided, corrected for all gains compared (Holm); 1 where there are too few rounds; None: not tested."""

    @property
    def ratio(self) -> float:
        return self.after / self.before

    def is_real(self, alpha: float) -> bool:
        """More than noise?"""
        return self.p is not None and self.p <= alpha


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs side by side."""

    changes: tuple[Change, ...]
    verdicts: tuple[tuple[str, str, str], ...]
    """(cell, or a bucket of it, before, after) where the verdict is another one."""
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    settings: tuple[str, ...]
    """Keys of the config that differ."""
    fleet: tuple[str, ...]
    """What differs between the fleets that were measured, as far as the runs say which."""
    alpha: float


GAIN = "gain in "
ARMS: dict[str, Callable[[RoundMeans], float]] = {
    "baseline": lambda item: item.baseline_objective,
    "candidate": lambda item: item.candidate_objective,
}


def compare(before: MatrixResult, after: MatrixResult) -> Comparison:
    """Cell by cell, by candidate and condition.

    Tested are the gains: they are taken within each run, so a machine that is slower as a whole cancels in them. Rounds
    are the unit: Welch's t-test on their logarithms. What each arm did by itself is shown and not tested, as two runs
    cannot tell a path that changed from a machine that did. Raises `ConfigError` where the runs were judged by
    different metrics.
    """
    if before.objective != after.objective:
        raise ConfigError(f"one run is judged by {before.objective}, the other by {after.objective}")
    old, new = _by_name(before), _by_name(after)
    common = [name for name in old if name in new]
    return Comparison(
        changes=tuple(_corrected([change for name in common for change in _changes(name, old[name], new[name])])),
        verdicts=tuple(verdict for name in common for verdict in _other_verdicts(old[name], new[name])),
        only_before=tuple(name for name in old if name not in new),
        only_after=tuple(name for name in new if name not in old),
        settings=tuple(
            sorted(key for key in before.config | after.config if before.config.get(key) != after.config.get(key))
        ),
        fleet=tuple(_fleet_changes(before, after)),
        alpha=max(before.alpha, after.alpha),
    )


def _fleet_changes(before: MatrixResult, after: MatrixResult) -> Iterator[str]:
    yield from changes(before.fingerprints, after.fingerprints)
    for which, result in (("first", before), ("second", after)):
        if not any(result.fingerprints.values()):
            yield f"the {which} run does not say which fleet it measured"


def _by_name(result: MatrixResult) -> dict[str, CellResult]:
    return {cell.name: cell for cell in result.cells}


def _other_verdicts(before: CellResult, after: CellResult) -> Iterator[tuple[str, str, str]]:
    """Of the cell and of each bucket that both runs judged."""
    old, new = (
        {cell.name: cell.verdict} | {f"{cell.name}, {part}": item for part, item in cell.bucket_verdicts().items()}
        for cell in (before, after)
    )
    for name in old:
        if name in new and old[name].decision is not new[name].decision:
            yield name, old[name].decision.value, new[name].decision.value


def _changes(name: str, before: CellResult, after: CellResult) -> Iterator[Change]:
    metrics = dict.fromkeys(metric for item in before.rounds for metric in item.gains)
    for metric in metrics:
        old, new = (
            [math.log(item.gains[metric]) for item in cell.rounds if metric in item.gains] for cell in (before, after)
        )
        if old and new:
            yield Change(name, GAIN + metric, _geometric(old), _geometric(new), _p_value(old, new))
    for what, value in ARMS.items():
        old, new = ([math.log(value(item)) for item in cell.rounds] for cell in (before, after))
        if old and new:
            yield Change(name, what, _geometric(old), _geometric(new), None)


def _p_value(old: Sequence[float], new: Sequence[float]) -> float:
    """1 where there are too few rounds, or no spread to go by."""
    if min(len(old), len(new)) < MIN_ROUNDS or (np.ptp(old) == 0 and np.ptp(new) == 0):
        return 1.0
    return float(ttest_ind(old, new, equal_var=False).pvalue)


def _corrected(found: Sequence[Change]) -> Iterator[Change]:
    adjusted = iter(holm([change.p for change in found if change.p is not None]))
    for change in found:
        yield change if change.p is None else replace(change, p=next(adjusted))


def _geometric(logs: Sequence[float]) -> float:
    return math.exp(sum(logs) / len(logs))


def render_comparison(comparison: Comparison, objective: str) -> Table:
    """One row per figure; a gain that changed by more than noise is marked."""
    table = Table("cell", "figure", "before", "after", "change", "p", "", title=f"judged by {objective}")
    for change in comparison.changes:
        is_real = change.is_real(comparison.alpha)
        shown = (_shown(value, change.what, objective) for value in (change.before, change.after))
        tested = ("–", "the path or the machine")
        if change.p is not None:
            tested = (f"{change.p:.3f}", "changed" if is_real else "within the noise")
        row = (change.cell, change.what, *shown, f"{change.ratio - 1:+.1%}", *tested)
        table.add_row(*row, style="bold" if is_real else "")
    return table


def remarks(comparison: Comparison) -> list[str]:
    """What the table does not say, one line each."""
    lines = [f"verdict on {cell}: {before} → {after}" for cell, before, after in comparison.verdicts]
    lines += [f"fleet: {change}" for change in comparison.fleet]
    lines += [f"only in the first run: {name}" for name in comparison.only_before]
    lines += [f"only in the second run: {name}" for name in comparison.only_after]
    if comparison.settings:
        lines.append(f"the runs differ in their settings: {', '.join(comparison.settings)}")
    if not comparison.changes:
        lines.append("the two runs have no cell with measured rounds in common")
    elif not any(change.is_real(comparison.alpha) for change in comparison.changes):
        lines.append("no gain changed by more than the noise between rounds")
    return lines


def _shown(value: float, what: str, objective: str) -> str:
    if what.startswith(GAIN):
        return f"{value:.2f}×"
    return f"{value:.1f} tok/s" if objective == "throughput" else f"{value * 1000:.2f} ms"

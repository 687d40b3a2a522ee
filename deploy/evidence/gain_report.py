"""How is what a candidate gained in every metric shown: as a table of the page and as rows of a CSV?"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

from deploy.evidence.result import CellResult, Gain, MatrixResult

STATISTICS = ("mean", "p50", "p95")
LABELS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "request", "throughput": "throughput"}
"""What metrics are called on the page, in the order in which a request meets them."""
COLUMNS = ("condition", "arm", "metric", "statistic", "gain", "gain_low", "gain_high")


@dataclass(frozen=True, slots=True)
class GainRow:
    """One metric of one cell."""

    cell: str
    metric: str
    by_statistic: tuple[Gain | None, ...]
    """In the order of `STATISTICS`; None where that is not reckoned: there is no mean of itl, no p95 of throughput."""


def gain_rows(result: MatrixResult) -> Iterator[GainRow]:
    """A row for every metric of every cell that has a value."""
    for cell in result.cells:
        known = {(gain.metric, gain.statistic): gain for gain in _gains(cell)}
        for metric, label in LABELS.items():
            row = tuple(known.get((metric, statistic)) for statistic in STATISTICS)
            if any(row):
                yield GainRow(cell.name, label, row)


def render_gain_csv(result: MatrixResult) -> str:
    """One row per cell, metric and statistic; without low and high where nothing is claimed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for cell in result.cells:
        for gain in _gains(cell):
            interval = gain.interval or ("", "")
            writer.writerow((cell.condition, cell.candidate, gain.metric, gain.statistic, gain.estimate, *interval))
    return text.getvalue()


def _gains(cell: CellResult) -> Iterator[Gain]:
    """Those that have a value. In an open loop throughput is what was offered, so that nothing was gained in it."""
    is_closed = cell.level.concurrency is not None
    for gain in cell.gains:
        if gain.estimate is not None and (is_closed or gain.metric != "throughput"):
            yield gain

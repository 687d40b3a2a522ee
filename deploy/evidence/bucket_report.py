"""How are the verdicts on buckets shown: as a heat map, as rows of a CSV, and beside their cells in the terminal?"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

from deploy.bench.load_result import Spread
from deploy.evidence.buckets import in_order
from deploy.evidence.figures import PartFigures
from deploy.evidence.result import CellResult, MatrixResult
from deploy.evidence.verdicts import CellVerdict

ARMS = ("baseline", "candidate")
SPREADS = tuple((metric, place) for metric in ("ttft", "itl", "e2e") for place in ("p50", "p95"))
FIGURES = tuple(
    f"{arm}_{name}" for arm in ARMS for name in ("requests", "bad", *(f"{metric}_{place}" for metric, place in SPREADS))
)
COLUMNS = (
    "condition",
    "arm",
    "bucket",
    "pairs",
    "verdict",
    "gain",
    "gain_low",
    "gain_high",
    "baseline_tpot",
    "candidate_tpot",
    "acceptance",
    *FIGURES,
    "reason",
)


@dataclass(frozen=True, slots=True)
class BucketMap:
    """Verdicts, a row for each cell."""

    buckets: tuple[str, ...]
    rows: tuple[tuple[str, tuple[CellVerdict | None, ...]], ...]
    """(cell, its verdict in each of `buckets`); None where it has no such request."""


def bucket_map(result: MatrixResult) -> BucketMap:
    """Of all cells; without a row where buckets were not judged."""
    verdicts = {cell.name: known for cell in result.cells if (known := cell.bucket_verdicts())}
    names = tuple(in_order(name for known in verdicts.values() for name in known))
    rows = tuple((cell, tuple(known.get(name) for name in names)) for cell, known in verdicts.items())
    return BucketMap(names, rows)


def unlike_the_cell(cell: CellResult) -> Iterator[tuple[str, CellVerdict]]:
    """The buckets whose verdict is another than their cell's."""
    for name, verdict in cell.bucket_verdicts().items():
        if verdict.decision is not cell.verdict.decision:
            yield name, verdict


def render_bucket_csv(result: MatrixResult) -> str:
    """One row per bucket of each cell, in seconds; empty is not known. The gain is what the verdict rests on."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for cell in result.cells:
        writer.writerows(_rows(cell))
    return text.getvalue()


def _rows(cell: CellResult) -> Iterator[dict[str, object]]:
    for part in cell.slices:
        if part.verdict is None:
            continue
        gain = part.verdict.gain
        estimate, low, high = (None, None, None) if gain is None else (gain.estimate, gain.low, gain.high)
        acceptance = None if part.acceptance is None else part.acceptance.rate
        known = {
            "condition": cell.condition,
            "arm": cell.candidate,
            "bucket": part.name,
            "pairs": part.pairs,
            "verdict": part.verdict.decision.value,
            "gain": estimate,
            "gain_low": low,
            "gain_high": high,
            "baseline_tpot": part.baseline_tpot,
            "candidate_tpot": part.candidate_tpot,
            "acceptance": acceptance,
            **dict(_figures("baseline", part.baseline_figures)),
            **dict(_figures("candidate", part.candidate_figures)),
            "reason": part.verdict.reason,
        }
        yield {name: value for name, value in known.items() if value is not None}


def _figures(arm: str, figures: PartFigures | None) -> Iterator[tuple[str, object]]:
    """The columns of one arm; those that older reports do not know are left out."""
    if figures is None:
        return
    yield f"{arm}_requests", figures.requests
    yield f"{arm}_bad", figures.bad
    for metric, place in SPREADS:
        spread: Spread | None = getattr(figures, metric)
        if spread is not None:
            yield f"{arm}_{metric}_{place}", getattr(spread, place)

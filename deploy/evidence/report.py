"""A matrix's result for people and programs: one HTML file, a CSV, and a table for the terminal."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files

import jinja2
import yaml
from markupsafe import Markup
from plotly.offline import get_plotlyjs
from rich.table import Table

from deploy.bench.load_result import Spread
from deploy.evidence.charts import charts
from deploy.evidence.figures import ArmFigures
from deploy.evidence.result import CellResult, Gain, MatrixResult
from deploy.evidence.verdicts import Decision

STYLES = {Decision.KEEP: "green", Decision.DROP: "red", Decision.INCONCLUSIVE: "", Decision.REFUSED: "yellow"}
COLUMNS = (
    "requests",
    "bad",
    "TTFT",
    "TPOT",
    "ITL",
    "gap p99",
    "stall",
    "request",
    "queue",
    "tokens/s",
    "requests/s",
    "accepted length",
    "rejected",
    "draft",
    "verify",
    "wire",
    "KV",
    "memory GiB",
)


def render_html(result: MatrixResult) -> str:
    """One file that needs nothing else: plotly.js (about 5 MB) is inside."""
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        files("deploy.evidence").joinpath("report.html.j2").read_text(encoding="utf-8")
    )
    pictures = charts(result)
    levels = list(dict.fromkeys(cell.level.text for cell in result.cells))
    figures = {panel.id: panel.figure for chart in pictures for panel in chart.panels}
    return template.render(
        result=result,
        created=f"{datetime.fromtimestamp(result.created, UTC):%Y-%m-%d %H:%M} UTC",
        levels=levels,
        grid=list(_grid(result, levels)),
        columns=COLUMNS,
        figures=list(_figure_rows(result)),
        charts=pictures,
        figures_json=_script_json(figures),
        plotly_js=Markup(get_plotlyjs()),
        config=yaml.safe_dump(result.config, sort_keys=False),
        gain_text=_gain_text,
        ms=_ms,
    )


def render_csv(result: MatrixResult) -> str:
    """One row per arm and condition, latencies in seconds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("ttft", "tpot", "itl", "gap", "e2e", "e2e_from_sent", "queue", "stall")
    spreads = [f"{name}_{part}" for name in names for part in ("p50", "p95", "p99")]
    head = ["condition", "arm", "verdict", "gain", "gain_low", "gain_high", "requests", "bad"]
    rates = ["output_tokens_per_second", "completed_per_second", "acceptance", "mean_accepted_length", "rejected"]
    writer.writerow([*head, *spreads, *rates])
    for condition, arm, figures, cell in _arms(result):
        gain = cell.verdict.gain if cell else None
        verdict = [
            cell.verdict.decision.value if cell else "",
            *(_or_empty(gain, part) for part in ("estimate", "low", "high")),
        ]
        latencies = [_or_empty(getattr(figures, name), part) for name in names for part in ("p50", "p95", "p99")]
        accepted = [_or_empty(figures.acceptance, part) for part in ("rate", "mean_accepted_length", "rejected")]
        speeds = [figures.output_tokens_per_second, figures.completed_per_second]
        writer.writerow([condition, arm, *verdict, figures.requests, figures.bad, *latencies, *speeds, *accepted])
    return text.getvalue()


def render_table(result: MatrixResult) -> Table:
    """The verdicts, for the terminal."""
    title = f"{result.model}: {result.rounds_done} of {result.rounds_planned} rounds, judged by {result.objective}"
    table = Table("cell", "verdict", "gain", "95 %", "why", title=title, caption=result.recommendation)
    for cell in result.cells:
        verdict = cell.verdict
        gain = f"{verdict.gain.estimate:.2f}×" if verdict.gain else "–"
        interval = f"{verdict.gain.low:.2f} – {verdict.gain.high:.2f}" if verdict.gain else "–"
        name = f"{cell.candidate}, {cell.sampling} at {cell.level.text}"
        table.add_row(name, verdict.decision.value, gain, interval, verdict.reason, style=STYLES[verdict.decision])
    return table


def _grid(result: MatrixResult, levels: list[str]) -> Iterator[tuple[str, list[CellResult | None]]]:
    for candidate, sampling in dict.fromkeys((cell.candidate, cell.sampling) for cell in result.cells):
        here = {
            cell.level.text: cell for cell in result.cells if (cell.candidate, cell.sampling) == (candidate, sampling)
        }
        yield f"{candidate}, {sampling}", [here.get(level) for level in levels]


def _arms(result: MatrixResult) -> Iterator[tuple[str, str, ArmFigures, CellResult | None]]:
    """Every arm of every condition; the cell where it is a candidate."""
    seen = set()
    for cell in result.cells:
        if cell.condition not in seen:
            seen.add(cell.condition)
            yield cell.condition, result.baseline, cell.baseline_figures, None
        yield cell.condition, cell.candidate, cell.candidate_figures, cell


def _figure_rows(result: MatrixResult) -> Iterator[tuple[str, list[str]]]:
    for condition, arm, figures, _ in _arms(result):
        server, accepted = figures.server, figures.acceptance
        yield (
            f"{arm}, {condition}",
            [
                str(figures.requests),
                str(figures.bad),
                *(_spread(getattr(figures, name)) for name in ("ttft", "tpot", "itl")),
                "–" if figures.gap is None else _ms(figures.gap.p99),
                "–" if figures.stall is None else f"{figures.stall.p50:.1%}",
                _spread(figures.e2e),
                _spread(figures.queue),
                f"{figures.output_tokens_per_second:.1f}",
                f"{figures.completed_per_second:.2f}",
                "–" if accepted is None else f"{accepted.mean_accepted_length:.2f}",
                "–" if accepted is None else f"{accepted.rejected:.0%}",
                *(_ms(value) for value in (server.draft_seconds, server.verify_seconds, server.wire_seconds)),
                "–" if server.kv_usage is None else f"{server.kv_usage:.0%}",
                "–" if server.memory_bytes is None else f"{server.memory_bytes / 2**30:.2f}",
            ],
        )


def _script_json(value: object) -> Markup:
    """JSON that cannot end the script element it stands in."""
    return Markup(json.dumps(value, allow_nan=False).replace("<", "\\u003c"))


def _gain_text(gain: Gain) -> str:
    if gain.estimate is None:
        return "–"
    interval = f" ({gain.interval[0]:.2f} – {gain.interval[1]:.2f})" if gain.interval else ""
    return f"{gain.estimate:.2f}×{interval}"


def _spread(spread: Spread | None) -> str:
    return "–" if spread is None else f"{_ms(spread.p50)} / {_ms(spread.p95)}"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.1f}"


def _or_empty(holder: object | None, name: str) -> object:
    return "" if holder is None else getattr(holder, name)

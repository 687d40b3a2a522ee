"""A matrix's result for people and programs: one HTML file, a CSV, and a table for the terminal."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.resources import files

import jinja2
import yaml
from markupsafe import Markup
from plotly.offline import get_plotlyjs
from rich.table import Table

from deploy.bench.load_result import Spread
from deploy.evidence.bucket_report import bucket_map, unlike_the_cell
from deploy.evidence.charts import charts
from deploy.evidence.figures import ArmFigures
from deploy.evidence.gain_report import STATISTICS, gain_rows
from deploy.evidence.result import FEWEST_FOR_P95, CellResult, Gain, MatrixResult, Slice
from deploy.evidence.verdicts import CellVerdict, Decision
from fleet.traffic import Outcome

STYLES = {Decision.KEEP: "green", Decision.DROP: "red", Decision.INCONCLUSIVE: "", Decision.REFUSED: "yellow"}
COLUMNS = (
    "requests",
    "bad",
    "fallbacks",
    "timed out",
    "TTFT",
    "TPOT",
    "ITL",
    "gap p99",
    "stall",
    "request",
    "request from sent",
    "queue",
    "tokens/s",
    "requests/s",
    "accepted length",
    "rejected",
    "draft",
    "verify",
    "accept",
    "wire",
    "KV",
    "host memory GiB",
    "GPU memory GiB",
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
        by_bucket=bucket_map(result),
        columns=COLUMNS,
        figures=list(_figure_rows(result)),
        gains=list(gain_rows(result)),
        statistics=STATISTICS,
        fewest_for_p95=FEWEST_FOR_P95,
        charts=pictures,
        figures_json=_script_json(figures),
        plotly_js=Markup(get_plotlyjs()),
        config=yaml.safe_dump(result.config, sort_keys=False),
        gain_text=_gain_text,
        both=_both,
        ms=_ms,
    )


def render_csv(result: MatrixResult) -> str:
    """One row per arm and condition, latencies in seconds; empty is not known."""
    text = io.StringIO()
    rows = [
        {"condition": condition, "arm": arm, **_verdict_columns(cell), **_figure_columns(figures)}
        for condition, arm, figures, cell in _arms(result)
    ]
    writer = csv.DictWriter(text, rows[0] if rows else ("condition", "arm"), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _verdict_columns(cell: CellResult | None) -> dict[str, object]:
    gain = cell.verdict.gain if cell else None
    parts = (("gain", "estimate"), ("gain_low", "low"), ("gain_high", "high"))
    return {
        "verdict": cell.verdict.decision.value if cell else "",
        **{name: _or_empty(gain, part) for name, part in parts},
    }


def _figure_columns(figures: ArmFigures) -> dict[str, object]:
    spreads = ("ttft", "tpot", "itl", "gap", "e2e", "e2e_from_sent", "queue", "stall")
    accepted = (("acceptance", "rate"), ("mean_accepted_length",) * 2, ("rejected",) * 2)
    server = asdict(figures.server)
    return {
        "requests": figures.requests,
        "bad": figures.bad,
        **{outcome.value: figures.outcomes.get(outcome, 0) for outcome in Outcome},
        "fallbacks": figures.fallbacks,
        "degenerate": figures.degenerate,
        **{
            f"{name}_{part}": _or_empty(getattr(figures, name), part)
            for name in spreads
            for part in ("p50", "p95", "p99")
        },
        "output_tokens_per_second": figures.output_tokens_per_second,
        "completed_per_second": figures.completed_per_second,
        **{name: _or_empty(figures.acceptance, part) for name, part in accepted},
        **{name: "" if value is None else value for name, value in server.items()},
        "client_lag": figures.client_lag,
    }


def render_table(result: MatrixResult) -> Table:
    """The verdicts, for the terminal: of every cell, and of the buckets that are not judged as their cell is."""
    title = f"{result.model}: {result.rounds_done} of {result.rounds_planned} rounds, judged by {result.objective}"
    table = Table("cell", "verdict", "gain", "95 %", "why", title=title, caption=result.recommendation)
    for cell in result.cells:
        _add_verdict(table, cell.name, cell.verdict)
        for bucket, verdict in unlike_the_cell(cell):
            _add_verdict(table, f"  {bucket}", verdict)
    return table


def _add_verdict(table: Table, name: str, verdict: CellVerdict) -> None:
    gain = f"{verdict.gain.estimate:.2f}×" if verdict.gain else "–"
    interval = f"{verdict.gain.low:.2f} – {verdict.gain.high:.2f}" if verdict.gain else "–"
    table.add_row(name, verdict.decision.value, gain, interval, verdict.reason, style=STYLES[verdict.decision])


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
                str(figures.fallbacks),
                f"{figures.outcomes.get(Outcome.TIMED_OUT, 0) / max(1, figures.requests):.1%}",
                *(_spread(getattr(figures, name)) for name in ("ttft", "tpot", "itl")),
                "–" if figures.gap is None else _ms(figures.gap.p99),
                "–" if figures.stall is None else f"{figures.stall.p50:.1%}",
                _spread(figures.e2e),
                _spread(figures.e2e_from_sent),
                _spread(figures.queue),
                f"{figures.output_tokens_per_second:.1f}",
                f"{figures.completed_per_second:.2f}",
                "–" if accepted is None else f"{accepted.mean_accepted_length:.2f}",
                "–" if accepted is None else f"{accepted.rejected:.0%}",
                *(
                    _ms(value)
                    for value in (
                        server.draft_seconds,
                        server.verify_seconds,
                        server.accept_seconds,
                        server.wire_seconds,
                    )
                ),
                "–" if server.kv_usage is None else f"{server.kv_usage:.0%}",
                _gib(server.memory_bytes),
                _gib(server.gpu_memory_bytes),
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


def _both(part: Slice, metric: str) -> str:
    """A latency of a part in both arms; empty in reports from before parts had them."""
    if part.baseline_figures is None or part.candidate_figures is None:
        return "–"
    arms = (part.baseline_figures, part.candidate_figures)
    return " → ".join(_spread(getattr(arm, metric)) for arm in arms)


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.1f}"


def _gib(size: int | None) -> str:
    return "–" if size is None else f"{size / 2**30:.2f}"


def _or_empty(holder: object | None, name: str) -> object:
    return "" if holder is None else getattr(holder, name)

"""Which pictures does the report show? From loads to memory, in the order of the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from deploy.evidence.chart import COLOURS, Chart, Figure, Panel
from deploy.evidence.figures import QUANTILES, ArmFigures
from deploy.evidence.gain_chart import gain_by_load
from deploy.evidence.measured import ServerFigures
from deploy.evidence.result import CellResult, MatrixResult

BASELINE_COLOUR = "#777777"
LATENCY_TITLES = {
    "ttft": "Time to first token (prefill and queue)",
    "tpot": "Time per output token (decode), one value per request",
    "itl": "Time per token over 8 tokens (decode), one value per token",
    "e2e": "Whole request",
}

_PANEL_LAYOUT: Figure = {
    "xaxis": {"type": "log", "tickangle": 0, "nticks": 6},
    "yaxis": {"tickformat": ".0%"},
    "margin": {"t": 10, "r": 10, "l": 45, "b": 30},
    "legend": {"x": 0.98, "y": 0.02, "xanchor": "right", "yanchor": "bottom", "bgcolor": "rgba(128,128,128,0.15)"},
}


def charts(result: MatrixResult) -> list[Chart]:
    """The pictures for which there is something to show."""
    made = (
        gain_by_load(result),
        *(_latency(result, metric, title) for metric, title in LATENCY_TITLES.items()),
        _acceptance_by_position(result),
        _acceptance_by_slice(result),
        _step_time(result),
        _kv(result),
        _memory(result),
    )
    return [chart for chart in made if chart.panels]


def _latency(result: MatrixResult, metric: str, title: str) -> Chart:
    """A panel per condition, a curve per path: which share of the values is below x."""
    panels = []
    for number, condition in enumerate(dict.fromkeys(cell.condition for cell in result.cells)):
        cells = [cell for cell in result.cells if cell.condition == condition]
        arms = [
            (result.baseline, cells[0].baseline_figures),
            *((cell.candidate, cell.candidate_figures) for cell in cells),
        ]
        traces = [
            _curve(
                name, arm.distributions[metric], BASELINE_COLOUR if place == 0 else COLOURS[(place - 1) % len(COLOURS)]
            )
            for place, (name, arm) in enumerate(arms)
            if metric in arm.distributions
        ]
        if traces:
            figure = {"data": traces, "layout": _PANEL_LAYOUT}
            panels.append(Panel(f"latency-{metric}-{number}", f"{_condition(cells[0])}, ms", figure))
    return Chart(title, "Share of the values at or below x; further left is faster.", tuple(panels))


def _curve(name: str, values: Sequence[float], colour: str) -> Figure:
    x = [value * 1000 for value in values]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": QUANTILES.tolist(),
        "line": {"color": colour},
    }


def _acceptance_by_position(result: MatrixResult) -> Chart:
    traces = []
    for number, cell in enumerate(result.cells):
        accepted = cell.candidate_figures.acceptance
        if accepted is not None:
            positions = list(range(1, len(accepted.by_position) + 1))
            name = f"{cell.candidate}, {_condition(cell)}"
            line = {"color": COLOURS[number % len(COLOURS)]}
            y = list(accepted.by_position)
            traces.append(
                {"type": "scatter", "mode": "lines+markers", "name": name, "x": positions, "y": y, "line": line}
            )
    layout = {
        "xaxis": {"title": {"text": "drafted token"}, "dtick": 1},
        "yaxis": {"tickformat": ".0%", "range": [0, 1]},
    }
    note = "Share of the verify rounds that accepted the draft up to this token."
    return Chart.single("acceptance-position", "Acceptance by position", note, {"data": traces, "layout": layout})


def _acceptance_by_slice(result: MatrixResult) -> Chart:
    traces = []
    for number, cell in enumerate(result.cells):
        known = [(item.name, item.acceptance.rate) for item in cell.slices if item.acceptance is not None]
        if known:
            x, y = [name for name, _ in known], [rate for _, rate in known]
            name = f"{cell.candidate}, {_condition(cell)}"
            colour = {"color": COLOURS[number % len(COLOURS)]}
            traces.append({"type": "bar", "name": name, "x": x, "y": y, "marker": colour})
    note = "Accepted/drafted, by the lengths of prompt and answer in tokens, and by category."
    layout = {"barmode": "group", "yaxis": {"tickformat": ".0%", "range": [0, 1]}}
    return Chart.single(
        "acceptance-slice", "Acceptance by bucket and category", note, {"data": traces, "layout": layout}
    )


def _step_time(result: MatrixResult) -> Chart:
    """Draft and wire are per round, verify and accept per target step: stacked, what one speculative step takes."""
    arms = [(name, arm.server) for name, arm in _arms(result.cells) if arm.server.verify_seconds]
    parts = {name: step_parts(server) for name, server in arms}
    traces = [
        {
            "type": "bar",
            "name": part,
            "x": list(parts),
            "y": [times[part] * 1000 for times in parts.values()],
            "marker": {"color": COLOURS[number]},
        }
        for number, part in enumerate(("draft", "wire", "verify", "accept"))
        if arms
    ]
    note = (
        "Mean per round as the workers report it. Verify is the target's forward pass, accept what follows it: "
        "sampling and accepting. On a GPU that is not known apart, and verify is the whole step."
    )
    layout = {"barmode": "stack", "yaxis": {"title": {"text": "ms"}}}
    return Chart.single("step", "Where a step's time goes", note, {"data": traces, "layout": layout})


def step_parts(server: ServerFigures) -> dict[str, float]:
    """Seconds of a step by part; what is not known of them is 0."""
    accept = server.accept_seconds or 0.0
    return {
        "draft": server.draft_seconds or 0.0,
        "wire": server.wire_seconds or 0.0,
        "verify": max(0.0, (server.verify_seconds or 0.0) - accept),
        "accept": accept,
    }


def _kv(result: MatrixResult) -> Chart:
    arms = [(name, arm.server.kv_usage) for name, arm in _arms(result.cells) if arm.server.kv_usage is not None]
    traces = [{"type": "bar", "x": [name for name, _ in arms], "y": [usage for _, usage in arms]}] if arms else []
    layout = {"yaxis": {"tickformat": ".0%", "range": [0, 1]}}
    return Chart.single("kv", "KV cache in use at most", "Looked at once a second.", {"data": traces, "layout": layout})


def _memory(result: MatrixResult) -> Chart:
    arms = [(name, arm.server.memory_bytes) for name, arm in _arms(result.cells) if arm.server.memory_bytes]
    sizes = [(size or 0) / 2**30 for _, size in arms]
    traces = [{"type": "bar", "x": [name for name, _ in arms], "y": sizes}] if arms else []
    note = (
        "Resident memory of the path's processes on this machine, target and draft together. What the targets "
        "allocated on GPUs is among the figures above."
    )
    figure = {"data": traces, "layout": {"yaxis": {"title": {"text": "GiB"}}}}
    return Chart.single("memory", "Host memory", note, figure)


def _arms(cells: Iterable[CellResult]) -> Iterator[tuple[str, ArmFigures]]:
    """Every arm under every condition once, with its name."""
    seen = set()
    for cell in cells:
        if cell.condition not in seen:
            seen.add(cell.condition)
            yield f"baseline, {_condition(cell)}", cell.baseline_figures
        yield f"{cell.candidate}, {_condition(cell)}", cell.candidate_figures


def _condition(cell: CellResult) -> str:
    return f"{cell.sampling} at {cell.level.text}"

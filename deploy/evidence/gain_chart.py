"""How does the gain go with the load, and what was to be expected of it?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deploy.evidence.chart import COLOURS, Chart, Figure
from deploy.evidence.result import CellResult, MatrixResult
from deploy.evidence.step_model import speed_up_by_steps


@dataclass(frozen=True, slots=True)
class Predicted:
    """How a curve beside the measured one is shown."""

    name: str
    dash: str
    note: str


PREDICTED = {
    "steps": Predicted(
        "by its steps",
        "dot",
        " Dotted: L·T(1)/(T(k+1)+D), what the acceptance and the step times measured in each cell come to in decoding. "
        "Where the gain is far from it something else than steps decides: prompts in between, waiting, drafting ahead.",
    ),
    "plan": Predicted(
        "predicted",
        "dash",
        " Dashed: what `fleet plan` reckons of decoding with the acceptance measured here, a prior; doubt it, or the "
        "measurement, where they are more than 30 % apart.",
    ),
}
"""By the basis of a prediction."""


def gain_by_load(result: MatrixResult) -> Chart:
    traces = []
    for number, (candidate, sampling) in enumerate(_lines(result.cells)):
        cells = [
            cell
            for cell in result.cells
            if (cell.candidate, cell.sampling) == (candidate, sampling) and cell.verdict.gain is not None
        ]
        closed = sorted(
            (cell for cell in cells if cell.level.concurrency), key=lambda cell: cell.level.concurrency or 0
        )
        if closed:
            colour = COLOURS[number % len(COLOURS)]
            traces.append(_gain_line(f"{candidate}, {sampling}", closed, colour))
            for basis in PREDICTED:
                traces += _predicted_line(result, f"{candidate}, {sampling}", closed, colour, basis)
    layout = {
        "xaxis": {"title": {"text": "requests open"}, "type": "log", "dtick": 0.30103},
        "yaxis": {"title": {"text": "times as fast as the baseline"}},
        "shapes": [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": {"dash": "dot"}}],
    }
    note = f"Gain in {result.objective} with its 95 % interval; below 1 the candidate is slower."
    bases = {item.basis for item in result.predictions}
    note += "".join(predicted.note for basis, predicted in PREDICTED.items() if basis in bases)
    if unknown := _unknown_steps(result):
        note += f" Not reckoned from step times: {unknown}."
    return Chart.single("gain", "Speed-up against concurrency", note, {"data": traces, "layout": layout})


def _gain_line(name: str, cells: Sequence[CellResult], colour: str) -> Figure:
    gains = [cell.verdict.gain for cell in cells if cell.verdict.gain is not None]
    errors = {
        "type": "data",
        "symmetric": False,
        "array": [gain.high - gain.estimate for gain in gains],
        "arrayminus": [gain.estimate - gain.low for gain in gains],
    }
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [cell.level.concurrency for cell in cells],
        "y": [gain.estimate for gain in gains],
        "error_y": errors,
        "line": {"color": colour},
    }


def _unknown_steps(result: MatrixResult) -> str:
    """Which candidates have no curve by their steps, and why; empty where all have one."""
    known = {item.candidate for item in result.predictions if item.basis == "steps"}
    reasons = {
        cell.candidate: reason
        for cell in result.cells
        if cell.candidate not in known and isinstance(reason := speed_up_by_steps(cell), str)
    }
    return "; ".join(f"{candidate}, because {reason}" for candidate, reason in reasons.items())


def _predicted_line(
    result: MatrixResult, name: str, cells: Sequence[CellResult], colour: str, basis: str
) -> list[Figure]:
    """Of the cells for which there is such a prediction; none where there is none."""
    known = {(item.candidate, item.condition): item.speed_up for item in result.predictions if item.basis == basis}
    points = [
        (cell.level.concurrency, known[cell.candidate, cell.condition])
        for cell in cells
        if (cell.candidate, cell.condition) in known
    ]
    if not points:
        return []
    x, y = (list(column) for column in zip(*points, strict=True))
    line = {"color": colour, "dash": PREDICTED[basis].dash}
    name = f"{name}, {PREDICTED[basis].name}"
    return [{"type": "scatter", "mode": "lines+markers", "name": name, "x": x, "y": y, "line": line}]


def _lines(cells: Iterable[CellResult]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((cell.candidate, cell.sampling) for cell in cells))

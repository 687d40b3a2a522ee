"""How one guardrail's verdict is told to a person: the question, the numbers, the test, what comes next."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from canary.status import Explanation, ReadingStatus, VerdictStatus
from deploy.render import UNKNOWN, amount, duration, interval

_EVER = "however long it waits or is watched"


def explanation_view(explanation: Explanation) -> RenderableType:
    """What `fleet canary explain` shows."""
    verdict = explanation["verdict"]
    grid = Table.grid(padding=(0, 2))
    for name, text in _lines(explanation):
        grid.add_row(Text(name, style="dim"), text)
    title = f"{verdict['guardrail']}: {verdict['level']} - {verdict['reason']}"
    parts: list[RenderableType] = [Text(title, style="bold"), grid]
    if explanation["readings"]:
        parts.append(_readings(explanation["readings"]))
    return Group(*parts)


def _lines(explanation: Explanation) -> list[tuple[str, str]]:
    verdict = explanation["verdict"]
    rollout = f"'{explanation['rollout']}', attempt {explanation['attempt']}, {explanation['state']}"
    lines = [
        ("rollout", f"{rollout} at {explanation['weight']:g} %"),
        ("asks", explanation["asks"]),
        ("estimate", f"{amount(verdict['estimate'], verdict['unit'])}, 95 % interval {interval(verdict)}"),
        ("note", explanation["note"]),
        ("limit", amount(verdict["limit"], verdict["unit"])),
        ("evidence", evidence_line(explanation)),
        ("samples", samples_line(verdict)),
        ("looks at", explanation["sample"]),
        ("test", explanation["method"]),
        ("not counted", explanation["ignores"]),
        ("when it trips", explanation["acts"]),
    ]
    return [(name, text) for name, text in lines if text]


def evidence_line(explanation: Explanation) -> str:
    """How far the evidence goes, what chance of error that leaves, and where it is heading."""
    verdict, chance = explanation["verdict"], explanation["error_chance"]
    value, threshold = verdict["e_value"], verdict["threshold"]
    if value is None or threshold is None:
        return ""
    told = f"e-value {value:.3g}, trips at {threshold:.4g}"
    if chance is not None:
        told += (
            f" (the chance that {explanation['innocent']} ever gets there, {_EVER}, is at most {chance * 100:.2g} %)"
        )
    eta = verdict["trip_eta_seconds"]
    return told if eta is None else f"{told}; at this pace in {duration(eta)}"


def samples_line(verdict: VerdictStatus) -> str:
    """Seen, still needed, and how long that takes at the present rate."""
    needed, eta = verdict["needed"], verdict["eta_seconds"]
    told = f"{verdict['samples']} seen"
    if needed:
        told += f", about {needed} more needed"
    if eta:
        told += f", enough in {duration(eta)} at the present rate"
    return told


def _readings(readings: list[ReadingStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("behind it")
    for name in ("value", "limit", "samples"):
        table.add_column(name, justify="right")
    for reading in readings:
        limit = UNKNOWN if reading["limit"] is None else amount(reading["limit"], reading["unit"])
        table.add_row(reading["name"], amount(reading["value"], reading["unit"]), limit, str(reading["samples"]))
    return table

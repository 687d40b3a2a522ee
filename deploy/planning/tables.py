"""How a plan looks in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deploy.planning.hardware import GIB
from deploy.planning.plan import ContextPlan, MemoryRow, Plan, ProposerPlan
from deploy.planning.speedup import Cell

UNKNOWN = "–"
GAIN, LOSS = 1.02, 0.98
"""Between them a prediction says nothing either way."""


def plan_view(plan: Plan) -> RenderableType:
    """Facts, memory, then speed-up, limits and round trips of each proposer."""
    parts: list[RenderableType] = [Text(line) for line in _facts(plan)]
    parts += ["", _memory_table(plan), "", _capacity_table(plan)]
    for proposer in plan.proposers:
        parts += ["", *_proposer_view(plan, proposer)]
    return Group(*parts, "", Text(plan.note, style="italic"))


def _facts(plan: Plan) -> Iterator[str]:
    active = f", {_billions(plan.active_parameters)} of them for each token"
    yield f"{plan.model} ({plan.family}): {_billions(plan.parameters)} parameters{active}, {plan.number_format}"
    yield (
        f"{plan.tensor_parallel} × {plan.gpu}: {plan.baseline.usable / GIB:.1f} GiB usable each; a 16-bit model "
        f"verifies for free up to about {plan.free_tokens:.0f} tokens in flight"
    )
    if plan.tensor_parallel > 1:
        yield "communication between GPUs is not reckoned with: it slows verification more than plain steps"


def _memory_table(plan: Plan) -> Table:
    table = _table(
        "memory of one device, GiB", ">weights", ">proposer", ">reserve", ">left for KV", ">KV/token", ">its draft's"
    )
    for label, row in _rows(plan):
        table.add_row(
            label,
            *(f"{part / GIB:.2f}" for part in (row.weights, row.proposer_weights, row.reserve, row.kv_cache)),
            f"{row.kv_bytes_per_token / 1024:.1f} KiB",
            f"{row.proposer_kv_bytes_per_token / 1024:.1f} KiB" if row.proposer_kv_bytes_per_token else UNKNOWN,
        )
    return table


def _capacity_table(plan: Plan) -> Table:
    contexts = [capacity.context for capacity in plan.baseline.capacities]
    columns = [f">{name}" for context in contexts for name in (f"tokens at {context}", "sequences", "tokens lost")]
    table = _table("what fits", *columns)
    for label, row in _rows(plan):
        cells: list[str] = []
        for capacity in row.capacities:
            lost = f"{capacity.lost:.1%}" if row is not plan.baseline else UNKNOWN
            cells += [f"{capacity.tokens:,}", f"{capacity.sequences:,}", lost]
        table.add_row(label, *cells)
    return table


def _rows(plan: Plan) -> Iterator[tuple[str, MemoryRow]]:
    yield "baseline", plan.baseline
    for proposer in plan.proposers:
        yield proposer.label, proposer.memory


def _proposer_view(plan: Plan, proposer: ProposerPlan) -> Iterator[RenderableType]:
    source = (
        " (assumed, for all alike; give yours with --acceptance or --measured)"
        if proposer.is_acceptance_assumed
        else ""
    )
    if proposer.drafting_share < 1.0:
        source += f" in the {proposer.drafting_share:.0%} of the rounds that draft"
    known = proposer.measured_positions
    if known is not None and known < proposer.draft_length:
        source += f" ({known} positions given: drafts beyond them count as never accepted)"
    place = f", on a GPU of its own ({proposer.own_gpu_bytes / GIB:.1f} GiB there)" if proposer.is_on_own_gpu else ""
    yield Text(
        f"{proposer.label}: {proposer.draft_length} drafts a round, acceptance {proposer.acceptance}{source}{place}",
        style="bold",
    )
    yield _speed_table(plan, proposer)
    yield _needs_table(plan, proposer)
    if proposer.round_trips:
        yield _round_trip_table(plan, proposer)


def _speed_table(plan: Plan, proposer: ProposerPlan) -> Table:
    table = _table("speed-up at batch", *_batches(plan), "pays at batch", ">when full")
    for row in proposer.contexts:
        cells = {cell.batch: _coloured(cell.speed_up) for cell in row.cells}
        table.add_row(
            f"context {row.context}",
            *(cells.get(batch, Text(UNKNOWN)) for batch in plan.batches),
            _ranges(row),
            _coloured(row.peak_ratio),
        )
        best = {cell.batch: _best(cell) for cell in row.cells}
        table.add_row("  best draft length", *(best.get(batch, UNKNOWN) for batch in plan.batches), "", "", style="dim")
    return table


def _needs_table(plan: Plan, proposer: ProposerPlan) -> Table:
    table = _table("breaks even at acceptance", *_batches(plan))
    for row in proposer.contexts:
        cells = {cell.batch: _needed(cell) for cell in row.cells}
        table.add_row(f"context {row.context}", *(cells.get(batch, UNKNOWN) for batch in plan.batches))
    return table


def _round_trip_table(plan: Plan, proposer: ProposerPlan) -> Table:
    context = proposer.contexts[0]
    table = _table(f"round trip, context {context.context}", *_batches(plan))
    for row in proposer.round_trips:
        table.add_row(f"{row.milliseconds:g} ms", *map(_coloured, row.speed_ups))
    longest = {cell.batch: _longest(cell) for cell in context.cells}
    table.add_row("pays up to", *(longest.get(batch, UNKNOWN) for batch in plan.batches), style="dim")
    return table


def _batches(plan: Plan) -> list[str]:
    return [f">{batch}" for batch in plan.batches]


def _best(cell: Cell) -> str:
    return f"{cell.best_length}: {cell.best_speed_up:.2f}" if cell.best_length else "0"


def _needed(cell: Cell) -> str:
    return "never" if cell.needed_acceptance is None else f"{cell.needed_acceptance:.2f}"


def _longest(cell: Cell) -> str:
    seconds = cell.longest_round_trip_seconds
    if seconds is None:
        return "any"
    return f"{seconds * 1000:.1f} ms" if seconds > 0 else "never"


def _ranges(row: ContextPlan) -> str:
    return ", ".join(f"{first}–{last}" if first < last else f"{first}" for first, last in row.paying_batches) or "none"


def _coloured(value: float) -> Text:
    return Text(f"{value:.2f}", style="green" if value >= GAIN else "red" if value <= LOSS else "")


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"


def _table(*columns: str) -> Table:
    """A plain table; a leading '>' aligns the column right."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    return table

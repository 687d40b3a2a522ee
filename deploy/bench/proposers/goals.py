"""Do the measured blocks reach the project's goals for a CPU? In words that follow from the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deploy.bench.proposers.block import Measured
from deploy.bench.proposers.choice import USELESS
from deploy.bench.proposers.plan import BASELINE, Cell
from deploy.bench.proposers.report import SEED, best, log_gains, speed_up
from deploy.evidence.bootstrap import MIN_ROUNDS, Interval, PairedEffect

CATEGORY = "chat"
BEST_OF_ALL = "the best proposer"
GOALS = ((BEST_OF_ALL, 1, 1.8), (BEST_OF_ALL, 8, 1.4), ("draft_model", 1, 1.3))
"""Arm, requests at a time and least speed-up: greedy, chat."""
FLOOR = 0.97
"""No arm may be slower anywhere: the adaptive length switches off what does not pay."""

Gains = dict[tuple[Cell, str], list[float]]


def goals(blocks: Sequence[Measured]) -> Iterator[str]:
    """Markdown: each goal whose cell was measured, then what the adaptive length leaves of those that do not pay."""
    gains = _gains(blocks)
    yield "**Goals** (greedy, chat; reached or missed where the whole interval is on that side)"
    yield ""
    yield "| goal | requests at a time | proposer | speed-up (95 %) | |"
    yield "|---|---|---|---|---|"
    for name, concurrency, least in GOALS:
        cell = Cell(0.0, concurrency, CATEGORY)
        own = {arm: values for (where, arm), values in gains.items() if where == cell and name in (arm, BEST_OF_ALL)}
        if own:
            arm = best(own)
            shown = (f"{name} ≥ {least:g} ×", str(concurrency), arm, speed_up(own[arm]), _verdict(own[arm], least))
            yield f"| {' | '.join(shown)} |"
    for cell, arm in sorted(gains):
        if arm == USELESS and (cell.temperature, cell.category) == (0.0, CATEGORY):
            found = gains[cell, arm]
            shown = (f"{arm} ≥ {FLOOR:g} ×", str(cell.concurrency), arm, speed_up(found), _verdict(found, FLOOR))
            yield f"| {' | '.join(shown)} |"
    yield ""
    yield from _slow(gains)


def _slow(gains: Gains) -> Iterator[str]:
    intervals = {place: found for place, values in gains.items() if (found := _interval(values)) is not None}
    if not intervals:
        return
    below = [place for place, found in intervals.items() if found.estimate < FLOOR]
    surely = sorted(place for place in below if intervals[place].high < FLOOR)
    yield (
        f"Below {FLOOR:g} × lie, of the {len(intervals)} speed-ups with an interval in all cells: {len(below)} by "
        f"their estimate, {len(surely)} with their whole interval{':' if surely else '.'}"
    )
    yield from (f"- {arm}: {cell}, {intervals[cell, arm].estimate:.2f} ×" for cell, arm in surely)
    yield ""


def _gains(blocks: Sequence[Measured]) -> Gains:
    by_cell: dict[Cell, list[Measured]] = {}
    for block in blocks:
        by_cell.setdefault(block.cell, []).append(block)
    return {
        (cell, arm): found
        for cell, own in by_cell.items()
        for arm in dict.fromkeys(block.arm for block in own)
        if arm != BASELINE and (found := log_gains(own, arm))
    }


def _interval(gains: Sequence[float]) -> Interval | None:
    return PairedEffect(gains, SEED).ratio() if len(gains) >= MIN_ROUNDS else None


def _verdict(gains: Sequence[float], least: float) -> str:
    found = _interval(gains)
    if found is None:
        return "too few rounds"
    if found.low >= least:
        return "**reached**"
    if found.high < least:
        return "**missed**"
    return f"{'reached' if found.estimate >= least else 'missed'}, not for certain"

"""What did the soak find? One row for each proposer, with its verdict, and every problem in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deploy.bench.growth import SLOPE_SLACK, grown, memory_slope, settled
from deploy.bench.soak.outcome import Soaked

EXPECTED = ("answered", "left", "BadRequest")
HEADINGS = (
    "proposer",
    "turns",
    "requests",
    "left by the client",
    "preemptions",
    "draft restarts",
    "tokens drafted",
    "slots / KV tokens / streams / drafts still held",
    "MiB warm → end",
    "MiB per 1,000 requests (95 %)",
    "verdict",
)


@dataclass(frozen=True, slots=True)
class Row:
    """A proposer and what it came to."""

    name: str
    has_draft: bool
    soaked: Soaked


def problems(row: Row) -> list[str]:
    """What leaked, what failed that should not have, and what the load did not bring about."""
    soaked = row.soaked
    found = []
    if not soaked.left.is_nothing:
        found.append(f"still held at rest, as slots / KV tokens / streams / drafts: {soaked.left}")
    else:
        found += grown(soaked.readings)
    found += [f"{count} requests ended in {name}" for name, count in _unexpected(soaked)]
    missing = {
        "no client left": not soaked.outcomes.get("left"),
        "nothing was preempted": not soaked.preemptions,
        "nothing was drafted": not soaked.drafted,
        "the draft was not restarted": row.has_draft and not soaked.restarts,
    }
    return found + [name for name, is_missing in missing.items() if is_missing]


def tables(rows: Sequence[Row], minutes: float) -> Iterator[str]:
    """Markdown, line by line."""
    requests = sum(row.soaked.requests for row in rows)
    yield (
        f"{requests:,} requests in {minutes:.0f} minutes, start-up included: as many as an hour brings at "
        f"{requests / 3600:.2f} requests/s."
    )
    yield ""
    yield f"| {' | '.join(HEADINGS)} |"
    yield "|---" * len(HEADINGS) + "|"
    for row in rows:
        yield f"| {' | '.join(_cells(row))} |"
    yield ""
    found = [f"- {row.name}: {problem}" for row in rows for problem in problems(row)]
    yield from found or ["Nothing was held after any turn, and no growth was shown."]
    yield ""


def _cells(row: Row) -> tuple[str, ...]:
    soaked = row.soaked
    return (
        row.name,
        str(len(soaked.readings)),
        str(soaked.requests),
        str(soaked.outcomes.get("left", 0)),
        str(soaked.preemptions),
        str(soaked.restarts) if row.has_draft else "–",
        str(soaked.drafted),
        str(soaked.left),
        *_memory(row),
    )


def _memory(row: Row) -> tuple[str, str, str]:
    soaked, verdict = row.soaked, "**see below**" if problems(row) else ""
    if not soaked.left.is_nothing:
        return "–", "–", verdict
    first, last = (settled(soaked.readings)[index].memory_bytes / 2**20 for index in (0, -1))
    slope = memory_slope(soaked.readings)
    told = "no leak" if slope.high <= SLOPE_SLACK else f"no leak above {slope.high:.0f} MiB per 1,000 requests"
    return f"{first:.0f} → {last:.0f}", f"{slope.estimate:+.1f} ({slope.low:+.1f} – {slope.high:+.1f})", verdict or told


def _unexpected(soaked: Soaked) -> Iterator[tuple[str, int]]:
    return ((name, count) for name, count in sorted(soaked.outcomes.items()) if name not in EXPECTED)

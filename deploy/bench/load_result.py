"""What a load run found: one record per request, and their summary by path."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain, pairwise

import numpy as np
from rich.table import Table

from deploy.bench.asking import Reply
from deploy.bench.load_plan import Conversation
from fleet.traffic import Outcome

UNKNOWN_PATH = "unknown"
"""Of a request that ended before the server told its path, or of a server that never does."""
LISTED = 3
"""Different reasons of failures that are told."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. Latencies are in seconds as `router.stopwatch` defines them, from when the request was due."""

    user: str
    prompt_id: str
    category: str
    turn: int
    path: str
    outcome: Outcome
    status: int | None
    error: str | None
    text: str
    fallbacks: int
    prompt_tokens: int
    output_tokens: int
    drafted: int
    accepted: int
    due: float
    send_delay: float
    """How late the driver was; when it is not small beside the latencies, the driver is the bottleneck."""
    ttft: float | None
    tpot: float | None
    e2e: float | None
    stall: float | None
    tokens_per_chunk: float | None
    itl: tuple[float, ...]
    gaps: tuple[float, ...]

    @classmethod
    def of(cls, conversation: Conversation, turn: int, reply: Reply) -> RequestRecord:
        answer, watch = reply.answer, reply.answer.watch
        return cls(
            user=conversation.user,
            prompt_id=conversation.prompt.id,
            category=conversation.prompt.category,
            turn=turn,
            path=answer.path or UNKNOWN_PATH,
            outcome=reply.outcome,
            status=reply.status,
            error=answer.error,
            text=answer.text,
            fallbacks=answer.fallbacks,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            drafted=answer.drafted,
            accepted=answer.accepted,
            due=reply.due,
            send_delay=reply.sent - reply.due,
            ttft=watch.ttft,
            tpot=watch.tpot,
            e2e=watch.e2e,
            stall=watch.stall,
            tokens_per_chunk=watch.tokens_per_chunk,
            itl=tuple(answer.itl),
            gaps=tuple(answer.gaps),
        )


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Everything that one run collected, in the order in which the requests ended."""

    records: tuple[RequestRecord, ...]
    elapsed_seconds: float


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, 95th and 99th percentile of a sample, linearly interpolated."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """None without a value."""
        known = [value for value in values if value is not None]
        return cls(*np.quantile(known, (0.5, 0.95, 0.99)).tolist()) if known else None


@dataclass(frozen=True, slots=True)
class PathSummary:
    """The requests of one path (or of all). Latencies in seconds; those of failed requests count as far as they got."""

    requests: int
    outcomes: dict[Outcome, int]
    fallbacks: int
    output_tokens: int
    tokens_per_second: float
    acceptance: float | None
    """accepted/drafted, pooled; None where nothing was drafted."""
    ttft: Spread | None
    itl: Spread | None
    tpot: Spread | None
    gap: Spread | None
    e2e: Spread | None
    stall: Spread | None
    tokens_per_chunk: Spread | None


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """A run at a glance. `moves` counts how often a user's next request went to another path than the last.

    At a fixed weight there are no moves; while a weight rises, none lead from the canary back to stable.
    """

    elapsed_seconds: float
    total: PathSummary
    paths: dict[str, PathSummary]
    moves: dict[tuple[str, str], int]
    send_delay: Spread | None
    complaints: dict[str, int]
    """What was said of requests that were not answered to their end, the most frequent first."""

    @property
    def failed(self) -> int:
        """Requests that were not answered to their end."""
        return self.total.requests - self.total.outcomes.get(Outcome.DONE, 0)


def summarise(result: LoadResult) -> LoadSummary:
    by_path = defaultdict(list)
    for record in result.records:
        by_path[record.path].append(record)
    return LoadSummary(
        elapsed_seconds=result.elapsed_seconds,
        total=_summarise_path(result.records, result.elapsed_seconds),
        paths={path: _summarise_path(by_path[path], result.elapsed_seconds) for path in sorted(by_path)},
        moves=_moves(result.records),
        send_delay=Spread.of(record.send_delay for record in result.records),
        complaints=dict(Counter(map(_complaint, _unanswered(result.records))).most_common()),
    )


def _unanswered(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    return [record for record in records if record.outcome is not Outcome.DONE]


def _complaint(record: RequestRecord) -> str:
    status = "" if record.status in (None, HTTPStatus.OK) else f"HTTP {record.status}: "
    return f"{status}{record.error or f'the answer was {record.outcome}'}"


def failures_line(summary: LoadSummary) -> str:
    """How many requests failed, and each reason once, with how often where there are several."""
    counts = summary.complaints.items()
    reasons = [reason if len(counts) == 1 else f"{count} × {reason}" for reason, count in counts]
    more = f"; and {len(reasons) - LISTED} other reasons" if len(reasons) > LISTED else ""
    return f"{summary.failed} of {summary.total.requests} requests failed: {'; '.join(reasons[:LISTED])}{more}"


def render(summary: LoadSummary) -> Table:
    """One column per path, one row per figure."""
    columns = {**summary.paths, "all": summary.total} if len(summary.paths) > 1 else dict(summary.paths)
    moves = ", ".join(f"{old} → {new}: {count}" for (old, new), count in sorted(summary.moves.items())) or "none"
    delay = f"{summary.send_delay.p99 * 1000:.1f} ms" if summary.send_delay else "–"
    table = Table(
        title=f"{summary.total.requests} requests in {summary.elapsed_seconds:.1f} s",
        caption=f"users who changed path: {moves}; driver late by p99 {delay}",
    )
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for row in zip(*(_rows(path) for path in columns.values()), strict=True):
        table.add_row(row[0][0], *(cell for _, cell in row))
    return table


def _summarise_path(records: Sequence[RequestRecord], elapsed_seconds: float) -> PathSummary:
    drafted = sum(record.drafted for record in records)
    tokens = sum(record.output_tokens for record in records)
    return PathSummary(
        requests=len(records),
        outcomes=dict(Counter(record.outcome for record in records)),
        fallbacks=sum(record.fallbacks for record in records),
        output_tokens=tokens,
        tokens_per_second=tokens / elapsed_seconds if elapsed_seconds else 0.0,
        acceptance=sum(record.accepted for record in records) / drafted if drafted else None,
        ttft=Spread.of(record.ttft for record in records),
        itl=Spread.of(chain.from_iterable(record.itl for record in records)),
        tpot=Spread.of(record.tpot for record in records),
        gap=Spread.of(chain.from_iterable(record.gaps for record in records)),
        e2e=Spread.of(record.e2e for record in records),
        stall=Spread.of(record.stall for record in records),
        tokens_per_chunk=Spread.of(record.tokens_per_chunk for record in records),
    )


def _moves(records: Iterable[RequestRecord]) -> dict[tuple[str, str], int]:
    by_user = defaultdict(list)
    for record in sorted(records, key=lambda record: record.due):
        if record.path != UNKNOWN_PATH:
            by_user[record.user].append(record.path)
    return dict(Counter(pair for paths in by_user.values() for pair in pairwise(paths) if pair[0] != pair[1]))


def _rows(path: PathSummary) -> list[tuple[str, str]]:
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(path.outcomes.items()))
    return [
        ("requests", outcomes),
        ("fallbacks", str(path.fallbacks)),
        ("output tokens", str(path.output_tokens)),
        ("tokens/s", f"{path.tokens_per_second:.1f}"),
        ("acceptance", "–" if path.acceptance is None else f"{path.acceptance:.1%}"),
        ("tokens per chunk, p50", "–" if path.tokens_per_chunk is None else f"{path.tokens_per_chunk.p50:.2f}"),
        ("TTFT p50 / p95, ms", _milliseconds(path.ttft, "p50", "p95")),
        ("ITL p50 / p95, ms", _milliseconds(path.itl, "p50", "p95")),
        ("TPOT p50 / p95, ms", _milliseconds(path.tpot, "p50", "p95")),
        ("gap p95 / p99, ms", _milliseconds(path.gap, "p95", "p99")),
        ("request p50 / p95, ms", _milliseconds(path.e2e, "p50", "p95")),
        ("stall p50 / p95", "–" if path.stall is None else f"{path.stall.p50:.1%} / {path.stall.p95:.1%}"),
    ]


def _milliseconds(spread: Spread | None, *names: str) -> str:
    if spread is None:
        return "–"
    return " / ".join(f"{getattr(spread, name) * 1000:.1f}" for name in names)

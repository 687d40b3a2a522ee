"""The figures of one arm in one cell: latencies, throughput, acceptance, server, errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np

from deploy.bench.load_result import Spread
from deploy.evidence.measured import MeasuredBlock, MeasuredRequest, ServerFigures, Timing
from deploy.evidence.pairing import Timed

_Number = TypeVar("_Number", int, float)

QUANTILES = np.linspace(0.0, 1.0, 21)


@dataclass(frozen=True, slots=True)
class AcceptanceFigures:
    """What became of drafted tokens, pooled over the requests."""

    drafted: int
    accepted: int
    rounds: int
    """Verify rounds with a draft."""
    rate: float
    """accepted/drafted."""
    mean_accepted_length: float
    """1 + accepted/rounds: the target's own token included."""
    per_request_rate: float
    """Mean over requests of accepted/drafted: long answers weigh no more than short ones."""
    rejected: float
    """Share of the rounds that accepted nothing."""
    by_position: tuple[float, ...]
    """Share of the rounds that accepted the draft's token 1, 2, … (unconditional)."""


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One arm. Latencies in seconds from when a request was due, of the requests that their own replica completed."""

    requests: int
    outcomes: dict[str, int]
    fallbacks: int
    """Requests that a replica lost and that went on elsewhere."""
    bad: int
    """Requests that failed, timed out, were cut short or turned away, and those that a replica lost."""
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    gap: Spread | None
    e2e: Spread | None
    e2e_from_sent: Spread | None
    stall: Spread | None
    queue: Spread | None
    tokens_per_chunk: Spread | None
    output_tokens_per_second: float
    """In the windows under full load."""
    completed_per_second: float
    degenerate: float
    """Share of the completed answers that repeat themselves."""
    client_lag: float
    """Upper quartile, over the blocks, of the 95th percentile of the client's own lateness, in seconds."""
    acceptance: AcceptanceFigures | None
    server: ServerFigures
    distributions: dict[str, tuple[float, ...]]
    """ttft, tpot, itl and e2e: quantiles 0, 0.05, …, 1; a metric without a value is left out."""


@dataclass(frozen=True, slots=True)
class PartFigures:
    """The requests of one arm in a bucket or category. Latencies in seconds, as in `ArmFigures`."""

    requests: int
    bad: int
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    e2e: Spread | None


def arm_figures(blocks: Sequence[MeasuredBlock], timed: Sequence[Timed]) -> ArmFigures:
    """The figures of an arm's blocks, whose requests are `timed`."""
    requests = [item.request for item in timed]
    done = [item for item in timed if item.request.is_done]
    timings = [item.timing for item in done]
    window = sum(block.window_seconds for block in blocks)
    return ArmFigures(
        requests=len(requests),
        outcomes=dict(Counter(request.outcome.value for request in requests)),
        fallbacks=sum(request.is_moved for request in requests),
        bad=sum(request.is_bad for request in requests),
        ttft=Spread.of(timing.ttft for timing in timings),
        tpot=Spread.of(timing.tpot for timing in timings),
        itl=Spread.of(chain.from_iterable(timing.itl for timing in timings)),
        gap=Spread.of(chain.from_iterable(timing.gaps for timing in timings)),
        e2e=Spread.of(timing.e2e for timing in timings),
        e2e_from_sent=Spread.of(timing.e2e_from_sent for timing in timings),
        stall=Spread.of(timing.stall for timing in timings),
        queue=Spread.of(item.request.queue_seconds for item in done),
        tokens_per_chunk=Spread.of(timing.tokens_per_chunk for timing in timings),
        output_tokens_per_second=_rate(sum(block.window_tokens for block in blocks), window),
        completed_per_second=_rate(sum(block.window_completed for block in blocks), window),
        degenerate=_rate(sum(item.request.is_degenerate for item in done), len(done)),
        client_lag=_upper_quartile([block.client_lag for block in blocks]),
        acceptance=acceptance_figures(requests),
        server=_combined([block.server for block in blocks]),
        distributions=_distributions(timings),
    )


def part_figures(timed: Sequence[Timed]) -> PartFigures:
    """Of a part of an arm's requests: only what each request has by itself."""
    timings = [item.timing for item in timed if item.request.is_done]
    return PartFigures(
        requests=len(timed),
        bad=sum(item.request.is_bad for item in timed),
        ttft=Spread.of(timing.ttft for timing in timings),
        tpot=Spread.of(timing.tpot for timing in timings),
        itl=Spread.of(chain.from_iterable(timing.itl for timing in timings)),
        e2e=Spread.of(timing.e2e for timing in timings),
    )


def acceptance_figures(requests: Sequence[MeasuredRequest]) -> AcceptanceFigures | None:
    """Of requests that no other path finished; None where nothing was drafted."""
    drafting = [request for request in requests if request.has_drafts]
    if not drafting:
        return None
    drafted, accepted = (sum(getattr(request, name) for request in drafting) for name in ("drafted", "accepted"))
    by_accepted: Counter[int] = Counter()
    for request in drafting:
        by_accepted.update(dict(enumerate(request.rounds_by_accepted)))
    rounds = by_accepted.total()
    return AcceptanceFigures(
        drafted=drafted,
        accepted=accepted,
        rounds=rounds,
        rate=accepted / drafted,
        mean_accepted_length=1 + _rate(accepted, rounds),
        per_request_rate=sum(request.accepted / request.drafted for request in drafting) / len(drafting),
        rejected=_rate(by_accepted[0], rounds),
        by_position=tuple(
            sum(count for reached, count in by_accepted.items() if reached >= position) / rounds
            for position in range(1, max(by_accepted, default=0) + 1)
        ),
    )


def _distributions(timings: Sequence[Timing]) -> dict[str, tuple[float, ...]]:
    values: dict[str, list[float]] = {
        name: [value for timing in timings if (value := getattr(timing, name)) is not None]
        for name in ("ttft", "tpot", "e2e")
    }
    values["itl"] = list(chain.from_iterable(timing.itl for timing in timings))
    return {name: tuple(np.quantile(known, QUANTILES).tolist()) for name, known in values.items() if known}


def _combined(blocks: Sequence[ServerFigures]) -> ServerFigures:
    return ServerFigures(
        kv_usage=_known(max, (block.kv_usage for block in blocks)),
        preemptions=_known(sum, (block.preemptions for block in blocks)),
        draft_seconds=_known(_mean, (block.draft_seconds for block in blocks)),
        verify_seconds=_known(_mean, (block.verify_seconds for block in blocks)),
        wire_seconds=_known(_mean, (block.wire_seconds for block in blocks)),
        rounds=_known(sum, (block.rounds for block in blocks)),
        empty_rounds=_known(sum, (block.empty_rounds for block in blocks)),
        late_rounds=_known(sum, (block.late_rounds for block in blocks)),
        memory_bytes=_known(max, (block.memory_bytes for block in blocks)),
        accept_seconds=_known(_mean, (block.accept_seconds for block in blocks)),
        gpu_memory_bytes=_known(max, (block.gpu_memory_bytes for block in blocks)),
    )


def _known(combine: Callable[[list[_Number]], _Number], values: Iterable[_Number | None]) -> _Number | None:
    known = [value for value in values if value is not None]
    return combine(known) if known else None


def _upper_quartile(values: Sequence[float]) -> float:
    """The smallest value that at least three quarters of them do not exceed."""
    return float(np.quantile(values, 0.75, method="inverted_cdf")) if values else 0.0


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _rate(amount: float, per: float) -> float:
    return amount / per if per else 0.0

"""From measured blocks to cells: figures, gains, slices, and what the verdict rests on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from deploy.evidence.acceptance_spans import spans_by_length
from deploy.evidence.bootstrap import MIN_ROUNDS, Floats, PairedEffect, quantile_ratio
from deploy.evidence.buckets import bucket_name
from deploy.evidence.cell_evidence import CellEvidence, Counts, Harm
from deploy.evidence.config import MatrixConfig
from deploy.evidence.figures import BAD, ArmFigures, acceptance_figures, arm_figures
from deploy.evidence.matrix import Condition
from deploy.evidence.measured import MeasuredRequest
from deploy.evidence.pairing import LATENCIES, THROUGHPUT, PairedRound, Timed, log_gains, log_ttft_room, only
from deploy.evidence.result import FEWEST_FOR_P95, CellResult, Gain, RoundMeans, Slice
from deploy.evidence.verdicts import CellVerdict


@dataclass(frozen=True, slots=True)
class Cell:
    """One candidate under one condition, with the rounds in which it and the baseline both ran."""

    condition: Condition
    candidate: str
    rounds: tuple[PairedRound, ...]

    @property
    def baseline_requests(self) -> list[Timed]:
        return [timed for item in self.rounds for timed in item.baseline_requests]

    @property
    def candidate_requests(self) -> list[Timed]:
        return [timed for item in self.rounds for timed in item.candidate_requests]

    def figures(self) -> tuple[ArmFigures, ArmFigures]:
        """Of the baseline and of the candidate."""
        return (
            arm_figures([item.baseline for item in self.rounds], self.baseline_requests),
            arm_figures([item.candidate for item in self.rounds], self.candidate_requests),
        )


def evidence_of(cell: Cell, config: MatrixConfig, *, has_content: bool, remembers: bool) -> CellEvidence:
    before, after = cell.figures()
    is_closed = cell.condition.level.concurrency is not None
    pace = [arm.tpot.p50 for arm in (before, after) if arm.tpot is not None]
    is_greedy = config.sampling[cell.condition.sampling].is_greedy
    return CellEvidence(
        objective=tuple(log_gains(cell.rounds, config.judge.objective)),
        ttft=tuple(log_gains(cell.rounds, "ttft")),
        ttft_room=tuple(log_ttft_room(cell.rounds, config.judge)),
        throughput=tuple(log_gains(cell.rounds, THROUGHPUT)) if is_closed else None,
        bad=_harm(cell.rounds, lambda request: request.outcome in BAD),
        degenerate=_harm(cell.rounds, lambda request: request.is_degenerate),
        kv_usage=(before.server.kv_usage, after.server.kv_usage),
        preemptions=(before.server.preemptions, after.server.preemptions),
        greedy_equal=_equal_answers(cell.rounds) if is_greedy else None,
        client_lag_share=max(before.client_lag, after.client_lag) / min(pace) if pace and min(pace) > 0 else None,
        has_content=has_content,
        remembers=remembers,
    )


def cell_result(cell: Cell, verdict: CellVerdict, config: MatrixConfig) -> CellResult:
    before, after = cell.figures()
    equal = _equal_answers(cell.rounds)
    return CellResult(
        candidate=cell.candidate,
        condition=cell.condition.id,
        level=cell.condition.level,
        sampling=cell.condition.sampling,
        verdict=verdict,
        baseline_figures=before,
        candidate_figures=after,
        gains=tuple(_gains(cell, config.seed)),
        slices=tuple(_slices(cell, config)),
        rounds=tuple(_round_means(cell, config.judge.objective)),
        equal_answers=equal.share if equal.total else None,
        acceptance_by_length=spans_by_length(cell.rounds),
    )


def _harm(rounds: Sequence[PairedRound], is_hit: Callable[[MeasuredRequest], bool]) -> Harm:
    before = [_count(item.baseline_requests, is_hit) for item in rounds]
    after = [_count(item.candidate_requests, is_hit) for item in rounds]
    differences = tuple(later.hits - earlier.hits for earlier, later in zip(before, after, strict=True))
    return Harm(_total(before), _total(after), differences)


def _count(arm: Sequence[Timed], is_hit: Callable[[MeasuredRequest], bool]) -> Counts:
    return Counts(sum(is_hit(timed.request) for timed in arm), len(arm))


def _total(counts: Sequence[Counts]) -> Counts:
    return Counts(sum(count.hits for count in counts), sum(count.total for count in counts))


def _equal_answers(rounds: Sequence[PairedRound]) -> Counts:
    pairs = [pair for item in rounds for pair in item.pairs()]
    return Counts(sum(one.request.answer_digest == other.request.answer_digest for one, other in pairs), len(pairs))


def _gains(cell: Cell, seed: int) -> list[Gain]:
    gains = [_mean_gain(cell.rounds, metric, seed) for metric in (*LATENCIES, THROUGHPUT)]
    done = min(sum(timed.request.is_done for timed in arm) for arm in (cell.baseline_requests, cell.candidate_requests))
    for metric in ("ttft", "tpot", "itl", "e2e"):
        before = [_values(item.baseline_requests, metric) for item in cell.rounds]
        after = [_values(item.candidate_requests, metric) for item in cell.rounds]
        for statistic, q, fewest in (("p50", 0.5, 1), ("p95", 0.95, FEWEST_FOR_P95)):
            ratio = quantile_ratio(before, after, q, seed)
            is_sure = ratio is not None and len(cell.rounds) >= MIN_ROUNDS and done >= fewest
            interval = (ratio.low, ratio.high) if ratio is not None and is_sure else None
            gains.append(Gain(metric, statistic, None if ratio is None else ratio.estimate, interval))
    return gains


def _mean_gain(rounds: Sequence[PairedRound], metric: str, seed: int) -> Gain:
    values = log_gains(rounds, metric)
    if len(values) < MIN_ROUNDS:
        return Gain(metric, "mean", math.exp(sum(values) / len(values)) if values else None, None)
    ratio = PairedEffect(values, seed).ratio()
    return Gain(metric, "mean", ratio.estimate, (ratio.low, ratio.high))


def _values(requests: Sequence[Timed], metric: str) -> Floats:
    timings = [timed.timing for timed in requests if timed.request.is_done]
    if metric == "itl":
        return np.fromiter(chain.from_iterable(timing.itl for timing in timings), dtype=float)
    known = [value for timing in timings if (value := getattr(timing, metric)) is not None]
    return np.asarray(known, dtype=float)


def _slices(cell: Cell, config: MatrixConfig) -> list[Slice]:
    """The cell's completed pairs by bucket and by category; the baseline's answer decides on the bucket."""
    indexes: dict[tuple[str, str], list[set[int]]] = defaultdict(lambda: [set() for _ in cell.rounds])
    for number, item in enumerate(cell.rounds):
        for one, _ in item.pairs():
            request = one.request
            indexes["bucket", bucket_name(request.prompt_tokens, request.output_tokens)][number].add(request.index)
            indexes["category", request.category][number].add(request.index)
    return [
        _slice(kind, name, only(cell.rounds, [frozenset(part) for part in parts]), config)
        for (kind, name), parts in sorted(indexes.items())
    ]


def _slice(kind: str, name: str, rounds: Sequence[PairedRound], config: MatrixConfig) -> Slice:
    objective = config.judge.objective
    pairs = [pair for item in rounds for pair in item.pairs()]
    return Slice(
        kind=kind,
        name=name,
        pairs=len(pairs),
        gain=_mean_gain(rounds, "tpot" if objective == THROUGHPUT else objective, config.seed),
        baseline_tpot=_mean([one.timing.tpot for one, _ in pairs]),
        candidate_tpot=_mean([other.timing.tpot for _, other in pairs]),
        acceptance=acceptance_figures([other.request for _, other in pairs]),
    )


def _round_means(cell: Cell, objective: str) -> list[RoundMeans]:
    means = []
    for item in cell.rounds:
        if objective == THROUGHPUT:
            arms = [block.window_tokens / block.window_seconds for block in (item.baseline, item.candidate)]
        else:
            values = [(getattr(one.timing, objective), getattr(other.timing, objective)) for one, other in item.pairs()]
            known = [(before, after) for before, after in values if before and after]
            arms = [float(np.exp(np.mean(np.log(column)))) for column in zip(*known, strict=True)]
        if len(arms) == 2 and min(arms) > 0:
            means.append(RoundMeans(item.baseline.round, arms[0], arms[1], _round_gains(cell, item)))
    return means


def _round_gains(cell: Cell, item: PairedRound) -> dict[str, float]:
    """Throughput is left out in an open loop, where it is what was offered."""
    metrics = LATENCIES if cell.condition.level.concurrency is None else (*LATENCIES, THROUGHPUT)
    return {metric: math.exp(gain) for metric in metrics for gain in log_gains((item,), metric)}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

"""From measured blocks to cells: figures, rounds, and what the verdict rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from deploy.evidence.acceptance_spans import spans_by_length
from deploy.evidence.cell_evidence import CellEvidence, Counts, Harm
from deploy.evidence.config import MatrixConfig
from deploy.evidence.figures import ArmFigures, arm_figures
from deploy.evidence.gains import all_gains
from deploy.evidence.matrix import Condition
from deploy.evidence.measured import MeasuredRequest
from deploy.evidence.pairing import LATENCIES, THROUGHPUT, PairedRound, Timed, log_gains, log_ttft_room
from deploy.evidence.result import CellResult, RoundMeans, Slice
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
        rounds=len(cell.rounds),
        objective=tuple(log_gains(cell.rounds, config.judge.objective)),
        ttft=tuple(log_gains(cell.rounds, "ttft")),
        ttft_room=tuple(log_ttft_room(cell.rounds, config.judge)),
        throughput=tuple(log_gains(cell.rounds, THROUGHPUT)) if is_closed else None,
        bad=_harm(cell.rounds, lambda request: request.is_bad),
        fallbacks=(before.fallbacks, after.fallbacks),
        degenerate=_harm(cell.rounds, lambda request: request.is_degenerate),
        kv_usage=(before.server.kv_usage, after.server.kv_usage),
        preemptions=(before.server.preemptions, after.server.preemptions),
        greedy_equal=_equal_answers(cell.rounds) if is_greedy else None,
        client_lag_share=max(before.client_lag, after.client_lag) / min(pace) if pace and min(pace) > 0 else None,
        has_content=has_content,
        remembers=remembers,
    )


def cell_result(cell: Cell, verdict: CellVerdict, slices: Sequence[Slice], config: MatrixConfig) -> CellResult:
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
        gains=tuple(all_gains(cell.rounds, config.seed)),
        slices=tuple(slices),
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

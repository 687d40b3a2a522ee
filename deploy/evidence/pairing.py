"""Which requests of two arms belong together, and by how much does one arm gain over the other in each round?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deploy.evidence.config import JudgeConfig
from deploy.evidence.measured import MeasuredBlock, MeasuredRequest, Timing

LATENCIES = ("ttft", "tpot", "e2e")
THROUGHPUT = "throughput"


@dataclass(frozen=True, slots=True)
class Timed:
    """A request with its latencies."""

    request: MeasuredRequest
    timing: Timing


@dataclass(frozen=True, slots=True)
class PairedRound:
    """The blocks of two arms in one round. They asked the same; index i of both lists is the same request."""

    baseline: MeasuredBlock
    candidate: MeasuredBlock
    baseline_requests: tuple[Timed, ...]
    candidate_requests: tuple[Timed, ...]

    def pairs(self) -> list[tuple[Timed, Timed]]:
        """The requests that both arms completed, each on the replica that began it."""
        both = zip(self.baseline_requests, self.candidate_requests, strict=True)
        return [(one, other) for one, other in both if one.request.is_done and other.request.is_done]


def paired_rounds(blocks: Iterable[MeasuredBlock], baseline: str, candidate: str) -> tuple[PairedRound, ...]:
    """The rounds of one condition in which both arms ran."""
    by_place = {(block.round, block.arm): block for block in blocks}
    rounds = sorted({number for number, _ in by_place})
    return tuple(
        PairedRound(one, other, _timed(one), _timed(other))
        for number in rounds
        if (one := by_place.get((number, baseline))) and (other := by_place.get((number, candidate)))
    )


def only(rounds: Sequence[PairedRound], indexes: Sequence[frozenset[int]]) -> tuple[PairedRound, ...]:
    """The rounds with a part of their requests: those with the given indexes, by round."""
    return tuple(
        PairedRound(
            item.baseline,
            item.candidate,
            tuple(timed for timed in item.baseline_requests if timed.request.index in kept),
            tuple(timed for timed in item.candidate_requests if timed.request.index in kept),
        )
        for item, kept in zip(rounds, indexes, strict=True)
    )


def log_gains(rounds: Sequence[PairedRound], metric: str) -> list[float]:
    """One value per round that has one: the candidate's gain as a natural logarithm, above 0 where it is better.

    Of a latency the mean over pairs of requests of log(baseline/candidate); of throughput the logarithm of the ratio
    of output tokens per second.
    """
    gains = (_throughput_gain(item) if metric == THROUGHPUT else _latency_gain(item, metric) for item in rounds)
    return [gain for gain in gains if gain is not None]


def log_ttft_room(rounds: Sequence[PairedRound], rules: JudgeConfig) -> list[float]:
    """One value per round: the mean over pairs of log(allowed/measured), with allowed = (1 + m) baseline + slack."""
    means = []
    for item in rounds:
        pairs = [(one.timing.ttft, other.timing.ttft) for one, other in item.pairs()]
        logs = [
            math.log((before * (1 + rules.max_ttft_increase) + rules.ttft_slack_s) / after)
            for before, after in pairs
            if before and after
        ]
        if logs:
            means.append(sum(logs) / len(logs))
    return means


def _timed(block: MeasuredBlock) -> tuple[Timed, ...]:
    return tuple(Timed(request, Timing.of(request)) for request in block.requests)


def _latency_gain(item: PairedRound, metric: str) -> float | None:
    values = [(getattr(one.timing, metric), getattr(other.timing, metric)) for one, other in item.pairs()]
    logs = [math.log(before / after) for before, after in values if before and after]
    return sum(logs) / len(logs) if logs else None


def _throughput_gain(item: PairedRound) -> float | None:
    before, after = (block.window_tokens / block.window_seconds for block in (item.baseline, item.candidate))
    return math.log(after / before) if before > 0 and after > 0 else None

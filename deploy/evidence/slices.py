"""How did a cell's requests fare by bucket of length and by category?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from deploy.evidence.buckets import in_order, shared_bucket
from deploy.evidence.config import MatrixConfig
from deploy.evidence.figures import acceptance_figures, part_figures
from deploy.evidence.gains import mean_gain
from deploy.evidence.measured import MeasuredRequest
from deploy.evidence.pairing import THROUGHPUT, PairedRound, only
from deploy.evidence.result import Slice
from deploy.evidence.verdicts import CellVerdict

Sorting = Callable[[MeasuredRequest, MeasuredRequest], str | None]


@dataclass(frozen=True, slots=True)
class Part:
    """The rounds of a cell with some of their requests, the same ones of both arms."""

    name: str
    rounds: tuple[PairedRound, ...]


def buckets_of(rounds: Sequence[PairedRound]) -> list[Part]:
    """By the lengths of prompt and answer, shortest first. A request that neither arm completed is in none."""
    parts = {part.name: part for part in _parts(rounds, shared_bucket)}
    return [parts[name] for name in in_order(parts)]


def categories_of(rounds: Sequence[PairedRound]) -> list[Part]:
    return sorted(_parts(rounds, lambda one, _: one.category), key=lambda part: part.name)


def slice_objective(config: MatrixConfig) -> str:
    """What a part of a cell is judged by: requests share their block's throughput, so tpot stands for it."""
    return "tpot" if config.judge.objective == THROUGHPUT else config.judge.objective


def slice_of(kind: str, part: Part, verdict: CellVerdict | None, config: MatrixConfig) -> Slice:
    """A part in figures."""
    pairs = [pair for item in part.rounds for pair in item.pairs()]
    return Slice(
        kind=kind,
        name=part.name,
        pairs=len(pairs),
        gain=mean_gain(part.rounds, slice_objective(config), config.seed),
        baseline_tpot=_mean([one.timing.tpot for one, _ in pairs]),
        candidate_tpot=_mean([other.timing.tpot for _, other in pairs]),
        acceptance=acceptance_figures([other.request for _, other in pairs]),
        verdict=verdict,
        baseline_figures=part_figures([timed for item in part.rounds for timed in item.baseline_requests]),
        candidate_figures=part_figures([timed for item in part.rounds for timed in item.candidate_requests]),
    )


def _parts(rounds: Sequence[PairedRound], sorting: Sorting) -> Iterator[Part]:
    indexes: dict[str, list[set[int]]] = defaultdict(lambda: [set() for _ in rounds])
    for number, item in enumerate(rounds):
        for one, other in zip(item.baseline_requests, item.candidate_requests, strict=True):
            if (name := sorting(one.request, other.request)) is not None:
                indexes[name][number].add(one.request.index)
    for name, kept in indexes.items():
        yield Part(name, only(rounds, [frozenset(part) for part in kept]))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

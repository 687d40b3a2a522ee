"""From everything that a run has measured so far to its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from deploy.evidence.bucket_verdicts import JudgedCell, judge_buckets
from deploy.evidence.cell_evidence import CellEvidence
from deploy.evidence.cells import Cell, cell_result, evidence_of
from deploy.evidence.config import ROUTED, MatrixConfig
from deploy.evidence.matrix import Condition, LoadLevel, arms
from deploy.evidence.measured import MeasuredBlock
from deploy.evidence.pairing import paired_rounds
from deploy.evidence.profile import acceptance_spans, asked_kinds
from deploy.evidence.recommendation import recommend
from deploy.evidence.result import SCHEMA, CellResult, MatrixResult
from deploy.evidence.routing import routing_effects, routing_text
from deploy.evidence.slices import buckets_of, categories_of, slice_of
from deploy.evidence.step_model import step_predictions
from deploy.evidence.verdicts import judge_cells, provisional


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run besides its blocks."""

    created: float
    model: str
    has_content: bool
    levels: tuple[LoadLevel, ...]
    throughput_by_concurrency: Mapping[int, float]
    fingerprints: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By path, where the server says."""


def assess(config: MatrixConfig, facts: RunFacts, blocks: Sequence[MeasuredBlock]) -> MatrixResult:
    """The result of the blocks measured so far; a cell without a paired round is left out."""
    cells = _cells(config, facts.levels, blocks)
    done = _whole_rounds(config, facts.levels, cells)
    results = tuple(_results(cells, done, config, facts))
    routing = routing_effects(cells, config)
    paths = [cell for cell in results if cell.candidate != ROUTED]
    objective = config.judge.objective
    advice = [recommend(paths, objective, done, config.rounds)]
    if done >= config.rounds:
        advice.append(routing_text(routing, objective))
    return MatrixResult(
        schema=SCHEMA,
        created=facts.created,
        url=config.url,
        model=facts.model,
        baseline=config.baseline,
        objective=objective,
        alpha=config.judge.alpha,
        config=config.model_dump(mode="json"),
        rounds_done=done,
        rounds_planned=config.rounds,
        throughput_by_concurrency=dict(facts.throughput_by_concurrency),
        has_content=facts.has_content,
        cells=results,
        recommendation=" ".join(filter(None, advice)),
        fingerprints={path: dict(parts) for path, parts in facts.fingerprints.items()},
        kinds=asked_kinds(cells, config),
        acceptance=acceptance_spans(cells, config),
        routing=routing,
        predictions=tuple(step_predictions(results)),
    )


def _results(cells: Sequence[Cell], done: int, config: MatrixConfig, facts: RunFacts) -> Iterator[CellResult]:
    evidence = [_evidence(cell, config, facts) for cell in cells]
    verdicts = judge_cells(evidence, config.judge, config.seed)
    judged = [JudgedCell(*parts) for parts in zip(cells, evidence, verdicts, strict=True)]
    buckets = [buckets_of(cell.rounds) for cell in cells]
    for item, parts, on_parts in zip(judged, buckets, judge_buckets(judged, buckets, config), strict=True):
        slices = [
            *(
                slice_of("bucket", part, provisional(verdict, done, config.rounds), config)
                for part, verdict in zip(parts, on_parts, strict=True)
            ),
            *(slice_of("category", part, None, config) for part in categories_of(item.cell.rounds)),
        ]
        yield cell_result(item.cell, provisional(item.verdict, done, config.rounds), slices, config)


def _whole_rounds(config: MatrixConfig, levels: Sequence[LoadLevel], cells: Sequence[Cell]) -> int:
    """Rounds that every cell of the matrix has; a cell of which nothing was measured has none."""
    planned = len(levels) * len(config.sampling) * len(config.candidates)
    return min((len(cell.rounds) for cell in cells), default=0) if len(cells) == planned else 0


def _evidence(cell: Cell, config: MatrixConfig, facts: RunFacts) -> CellEvidence:
    may_answer = facts.fingerprints if cell.candidate == ROUTED else (config.baseline, cell.candidate)
    remembers = any(_remembers_answers(facts.fingerprints.get(path, {})) for path in may_answer)
    return evidence_of(cell, config, has_content=facts.has_content, remembers=remembers)


def _remembers_answers(fingerprint: Mapping[str, str]) -> bool:
    """Does a path draft from the answers that it has finished? What comes twice is then drafted word for word."""
    kept = fingerprint.get("speculative.suffix_decoding_max_cached_requests")
    return fingerprint.get("speculative.method") == "suffix" and kept != "0"


def _cells(config: MatrixConfig, levels: Sequence[LoadLevel], blocks: Sequence[MeasuredBlock]) -> list[Cell]:
    baseline, *candidates = arms(config)
    conditions = [Condition(level, sampling) for level in levels for sampling in config.sampling]
    cells = []
    for candidate in candidates:
        for condition in conditions:
            here = [block for block in blocks if block.condition == condition.id]
            if rounds := paired_rounds(here, baseline.name, candidate.name):
                cells.append(Cell(condition, candidate.name, rounds))
    return cells

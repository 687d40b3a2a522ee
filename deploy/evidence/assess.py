"""From everything that a run has measured so far to its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deploy.evidence.cells import Cell, cell_result, evidence_of
from deploy.evidence.config import ROUTED, MatrixConfig
from deploy.evidence.matrix import Condition, LoadLevel, arms
from deploy.evidence.measured import MeasuredBlock
from deploy.evidence.pairing import paired_rounds
from deploy.evidence.profile import acceptance_spans, asked_kinds
from deploy.evidence.recommendation import recommend
from deploy.evidence.result import SCHEMA, MatrixResult
from deploy.evidence.routing import routing_effects, routing_text
from deploy.evidence.verdicts import judge_cells


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
    evidence = [evidence_of(cell, config, has_content=facts.has_content) for cell in cells]
    verdicts = judge_cells(evidence, config.judge, config.seed)
    results = tuple(cell_result(cell, verdict, config) for cell, verdict in zip(cells, verdicts, strict=True))
    done = min((len(cell.rounds) for cell in cells), default=0)
    routing = routing_effects(cells, config)
    paths = [cell for cell in results if cell.candidate != ROUTED]
    objective = config.judge.objective
    advice = (recommend(paths, objective, done, config.rounds), routing_text(routing, objective))
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
    )


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

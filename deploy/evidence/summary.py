"""From a matrix's report to what a rollout needs of it: where the candidate wins, on which fleet and traffic."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Literal

from canary.evidence import Cell, MatrixEvidence, Span
from deploy.evidence.config import MatrixConfig, parse_matrix
from deploy.evidence.draft_lengths import acceptance_at, best_length
from deploy.evidence.profile import mode_of
from deploy.evidence.recommendation import losing_buckets, recommend
from deploy.evidence.result import CONFIG_FILE, REPORT_FILE, RUN_FILE, CellResult, read_result
from deploy.evidence.verdicts import Decision
from fleet.errors import ConfigError
from fleet.traffic import SamplingMode


def evidence_for(folder: Path, stable: str, canary: str) -> MatrixEvidence:
    """What the report in a folder says about rolling `canary` out beside `stable`. Raises `ConfigError`."""
    result = read_result(folder)
    cells = [cell for cell in result.cells if cell.candidate == canary]
    if result.baseline != stable or not cells:
        measured = ", ".join(dict.fromkeys(cell.candidate for cell in result.cells)) or "nothing"
        raise ConfigError(
            f"evidence: {folder} measured {measured} beside '{result.baseline}', not '{canary}' beside '{stable}'"
        )
    if result.rounds_done < result.rounds_planned:
        raise ConfigError(
            f"evidence: {folder} holds {result.rounds_done} of {result.rounds_planned} rounds, and verdicts need all; "
            f"{_completion(folder)}"
        )
    config = parse_matrix(result.config, str(folder))
    closed = [cell.level.concurrency for cell in _judged(cells) if cell.level.concurrency is not None]
    return MatrixEvidence(
        folder=str(folder),
        created=result.created,
        renew=renewal(folder),
        decision=overall(cells),
        recommendation=recommend(cells, result.objective, result.rounds_done, result.rounds_planned),
        fingerprints={path: result.fingerprints.get(path, {}) for path in (stable, canary)},
        cells=tuple(winning_cells(cells, config)),
        losing=losing_buckets(cells),
        kinds=result.kinds,
        acceptance={
            SamplingMode(mode): Span(low=low, high=high)
            for mode, (low, high) in result.acceptance.get(canary, {}).items()
        },
        peak_open=max(closed, default=None),
    )


def overall(cells: Sequence[CellResult]) -> Literal["keep", "drop", "inconclusive"]:
    """keep where every cell is kept; drop where some are dropped and none is kept; else it depends on the cell."""
    decisions = {cell.verdict.decision for cell in cells}
    if decisions == {Decision.KEEP}:
        return "keep"
    return "drop" if Decision.DROP in decisions and Decision.KEEP not in decisions else "inconclusive"


def winning_cells(cells: Sequence[CellResult], config: MatrixConfig) -> Iterator[Cell]:
    """The closed-loop cells that were kept, each with the loads that it stands for.

    A load between two measured ones counts as the heavier of them, for speculation pays less the more runs; beyond the
    highest nothing is known. A sampling mode that was measured in several ways wins where all of them do.
    """
    closed = [cell for cell in cells if cell.level.concurrency is not None]
    for mode in SamplingMode:
        below = 0
        for load in sorted({cell.level.concurrency or 0 for cell in closed}):
            loaded = [cell for cell in closed if cell.level.concurrency == load]
            here = [cell for cell in loaded if mode_of(config, cell.sampling) is mode]
            if here and all(cell.verdict.decision is Decision.KEEP for cell in here):
                lengths = [length for cell in here if (length := best_length(cell)) is not None]
                length = min(lengths, default=None)
                span = acceptance_at(here, length)
                yield Cell(sampling=mode, above=below, up_to=load, draft_length=length, acceptance=span)
            below = load


def renewal(evidence: Path) -> str:
    """The command that measures the same again, into a folder that does not exist yet.

    `evidence`: a folder with a report, or the report alone, wherever it lies and whatever it is called.
    """
    base = _base(evidence)
    fresh = next(path for number in count(2) if not (path := base.with_name(f"{base.name}-{number}")).exists())
    return _matrix_command(evidence, fresh)


def _completion(evidence: Path) -> str:
    """What to do about a run that ended early: go on, where its measurements are there, or measure anew."""
    base = _base(evidence)
    if (base / RUN_FILE).exists():
        return f"finish it: {_matrix_command(evidence, base)}"
    return f"measure it again: {renewal(evidence)}"


def _base(evidence: Path) -> Path:
    base = evidence.parent if evidence.is_file() else evidence
    return base.resolve() if base.name in ("", "..") else base


def _matrix_command(evidence: Path, output: Path) -> str:
    report = evidence if evidence.is_file() else evidence / REPORT_FILE
    config = report.with_name(CONFIG_FILE)
    # Beside a report of another name lies the config of who knows which matrix.
    source = config if report.name == REPORT_FILE and config.exists() else report
    return f"fleet bench matrix -f {shlex.quote(str(source))} -o {shlex.quote(str(output))}"


def _judged(cells: Sequence[CellResult]) -> list[CellResult]:
    return [cell for cell in cells if cell.verdict.decision is not Decision.REFUSED]

"""What does a matrix say in the end? The schema of its JSON report, which is also what `compare` reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from deploy.evidence.bootstrap import Interval
from deploy.evidence.figures import AcceptanceFigures, ArmFigures, PartFigures
from deploy.evidence.matrix import LoadLevel
from deploy.evidence.verdicts import CellVerdict
from fleet.config import explain
from fleet.errors import ConfigError

SCHEMA: Final = 1
REPORT_FILE: Final = "report.json"
RUN_FILE: Final = "run.jsonl"
"""Beside the report: the measurements, for a run to go on."""
CONFIG_FILE: Final = "matrix.yaml"
"""Beside the report: the same matrix, to be measured again."""
FEWEST_FOR_P95: Final = 200
"""Requests in each arm below which a 95th percentile is shown without an interval and nothing is claimed of it."""


@dataclass(frozen=True, slots=True)
class Gain:
    """One metric compared: above 1 the candidate is better."""

    metric: str
    statistic: str
    """mean (geometric, over pairs of the same request), p50 or p95."""
    estimate: float | None
    interval: tuple[float, float] | None
    """95 %; None where there are too few rounds or, of a p95, too few requests to claim anything."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a cell's requests: a prompt/output bucket, which is judged, or a category, which is described."""

    kind: str
    """bucket or category."""
    name: str
    pairs: int
    gain: Gain
    """Of the objective; in a matrix judged by throughput, of tpot, as requests share their block's throughput."""
    baseline_tpot: float | None
    """Mean seconds per token after the first chunk; so is `candidate_tpot`."""
    candidate_tpot: float | None
    acceptance: AcceptanceFigures | None
    """The candidate's."""
    verdict: CellVerdict | None = None
    """Of a bucket; the only bucket of a cell has the cell's and its gain. None of a category, and in older reports."""
    baseline_figures: PartFigures | None = None
    """None in older reports; so is `candidate_figures`."""
    candidate_figures: PartFigures | None = None


@dataclass(frozen=True, slots=True)
class RoundMeans:
    """One round of a cell: geometric means over the pairs, for comparing two runs. Seconds; None is not known."""

    round: int
    baseline_objective: float
    candidate_objective: float
    """Seconds of a latency, or output tokens per second."""
    gains: dict[str, float] = field(default_factory=dict)
    """By metric: ttft, tpot, e2e and, in a closed loop, throughput. Ratios, above 1 where the candidate is better."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """One candidate beside the baseline under one condition."""

    candidate: str
    condition: str
    level: LoadLevel
    sampling: str
    verdict: CellVerdict
    baseline_figures: ArmFigures
    candidate_figures: ArmFigures
    gains: tuple[Gain, ...]
    slices: tuple[Slice, ...]
    rounds: tuple[RoundMeans, ...]
    equal_answers: float | None
    """Share of the completed pairs whose texts are the same."""
    acceptance_by_length: tuple[tuple[float, float], ...] = ()
    """Where a further round's mean of accepted/drafted would lie with drafts of at most 1, 2, … tokens."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.candidate}, {self.sampling} at {self.level.text}"

    def bucket_verdicts(self) -> dict[str, CellVerdict]:
        """By bucket, shortest first; empty where buckets were not judged."""
        return {part.name: part.verdict for part in self.slices if part.verdict is not None}


@dataclass(frozen=True, slots=True)
class RoutingEffect:
    """Requests left to the router beside the baseline and beside one path for all, over all cells of the run."""

    always: str
    """The path that speculates always."""
    over_baseline: Interval
    """Of the objective, as ratios: above 1 what the router decides is better. So are the other two."""
    always_over_baseline: Interval
    over_always: Interval


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is reckoned of a cell, with the acceptance that was measured in it."""

    candidate: str
    condition: str
    speed_up: float
    """Of decoding."""
    basis: Literal["plan", "steps"] = "plan"
    """`fleet plan` for the card that the config names, or the step times that were measured."""


@dataclass(frozen=True, slots=True)
class MatrixResult:
    """One run of a matrix."""

    schema: int
    created: float
    """Seconds since the Unix epoch at which the run began."""
    url: str
    model: str
    baseline: str
    objective: str
    alpha: float
    """Chance of any false keep or drop over all cells, and once more over the buckets of cells that have several."""
    config: dict[str, Any]
    rounds_done: int
    rounds_planned: int
    throughput_by_concurrency: dict[int, float]
    """Of the search for the peak on the baseline: median output tokens per second; empty where levels were given."""
    has_content: bool
    cells: tuple[CellResult, ...]
    recommendation: str
    fingerprints: dict[str, dict[str, str]] = field(default_factory=dict)
    """By path: part -> value of everything that the figures depend on; empty where the server did not say."""
    kinds: dict[str, int] = field(default_factory=dict)
    """The requests of one load level by sampling mode and buckets of prompt and answer: what was asked."""
    acceptance: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """By candidate and sampling mode (greedy, sampled): where a further round's mean of accepted/drafted would lie."""
    routing: tuple[RoutingEffect, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    """By measured step times where the server told them, and by `fleet plan` where the config names model and card."""


_ADAPTER: TypeAdapter[MatrixResult] = TypeAdapter(MatrixResult)


def to_json(result: MatrixResult) -> str:
    return _ADAPTER.dump_json(result, indent=2).decode() + "\n"


def json_schema() -> dict[str, Any]:
    return _ADAPTER.json_schema(mode="serialization")


def read_result(path: Path) -> MatrixResult:
    """The report in a file, or in `report.json` of a folder. Raises `ConfigError` where there is none."""
    file = path / REPORT_FILE if path.is_dir() else path
    try:
        return _ADAPTER.validate_json(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(f"{file} is no report of `fleet bench matrix`: {explain(error)[:300]}") from error

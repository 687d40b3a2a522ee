"""Requests that a replica lost and another one finished: an error of their arm, however well they ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.evidence.assess import RunFacts, assess
from deploy.evidence.config import MatrixConfig
from deploy.evidence.matrix import levels
from deploy.evidence.measured import MeasuredBlock, MeasuredRequest
from deploy.evidence.report import render_html
from deploy.evidence.result import CellResult
from deploy.evidence.verdicts import Decision
from fleet.errors import ConfigError
from fleet.traffic import Outcome
from tests.deploy.evidence.bench import config_of, measure, open_file
from tests.deploy.evidence.simulated import SimulatedFleet, SimulatedPath, VirtualClock

Loses = Callable[[int], bool]


def config(**changes: object) -> MatrixConfig:
    return config_of(load={"concurrency": [1]}, rounds=8, sampling={"greedy": {"temperature": 0}}, **changes)


def never(seed: int) -> bool:
    return False


def one_in_four(seed: int) -> bool:
    return seed % 4 == 1


def measured(folder: Path, *, baseline: Loses, candidate: Loses) -> tuple[CellResult, list[MeasuredBlock]]:
    """A candidate twice as fast as the baseline; four requests a round in each arm."""
    clock = VirtualClock()
    paths = {"baseline": SimulatedPath(loses=baseline), "speculative": SimulatedPath(base=0.01, loses=candidate)}
    file = open_file(config(), folder / "run.jsonl")
    result = measure(config(), SimulatedFleet(clock, 3, **paths), clock, file)
    (cell,) = result.cells
    return cell, file.blocks


def assessed(blocks: Sequence[MeasuredBlock]) -> CellResult:
    facts = RunFacts(0.0, "simulated", has_content=True, levels=levels(config()), throughput_by_concurrency={})
    (cell,) = assess(config(), facts, blocks).cells
    return cell


def test_a_candidate_that_is_fast_but_loses_requests_to_stable_is_dropped(tmp_path: Path) -> None:
    cell, _ = measured(tmp_path, baseline=never, candidate=one_in_four)
    assert cell.verdict.decision is Decision.DROP
    assert "errors 0/32 → 8/32 (lost by a replica and finished by another: 0 → 8)" in cell.verdict.reason
    figures = cell.candidate_figures
    assert (figures.outcomes, figures.fallbacks, figures.bad) == ({"done": 32}, 8, 8)
    assert {part.pairs for part in cell.slices if part.kind == "bucket"} == {24}
    (bucket,) = (part.candidate_figures for part in cell.slices if part.kind == "bucket")
    assert bucket is not None
    assert (bucket.requests, bucket.bad) == (32, 8)


def test_a_baseline_that_loses_as_many_is_charged_alike(tmp_path: Path) -> None:
    cell, _ = measured(tmp_path, baseline=one_in_four, candidate=one_in_four)
    assert cell.verdict.decision is Decision.KEEP, cell.verdict
    (errors,) = (guard.text for guard in cell.verdict.guards if guard.name == "errors")
    assert errors == "errors 8/32 → 8/32 (lost by a replica and finished by another: 8 → 8)"


def test_a_lost_request_counts_as_if_it_had_failed(tmp_path: Path) -> None:
    """Neither its latency nor its drafts nor its text are compared, whatever they are."""
    cell, blocks = measured(tmp_path, baseline=never, candidate=never)
    assert cell.verdict.decision is Decision.KEEP

    def changed(change: Callable[[MeasuredRequest], MeasuredRequest]) -> CellResult:
        return assessed(
            [
                replace(block, requests=(change(block.requests[0]), *block.requests[1:]))
                if block.arm == "speculative" and block.round < 2
                else block
                for block in blocks
            ]
        )

    lost = changed(
        lambda request: replace(
            request, fallbacks=2, chunks=((9.0, 1), (99.0, 11)), drafted=8, accepted=8, answer_digest="another"
        )
    )
    failed = changed(lambda request: replace(request, outcome=Outcome.FAILED))
    assert (lost.gains, lost.equal_answers) == (failed.gains, failed.equal_answers)
    assert (lost.verdict.decision, lost.verdict.gain) == (failed.verdict.decision, failed.verdict.gain)
    assert [part.gain for part in lost.slices] == [part.gain for part in failed.slices]
    assert lost.candidate_figures.acceptance is None
    assert lost.verdict.decision is Decision.INCONCLUSIVE
    assert lost.candidate_figures.fallbacks == 2


def test_what_another_path_brought_is_no_throughput(tmp_path: Path) -> None:
    clock = VirtualClock()
    steady = SimulatedPath(noise=0.0)
    fleet = SimulatedFleet(clock, 0, baseline=steady, speculative=replace(steady, loses=one_in_four))
    (cell,) = measure(config(), fleet, clock, open_file(config(), tmp_path / "run.jsonl")).cells
    before, after = cell.baseline_figures, cell.candidate_figures
    assert after.output_tokens_per_second == pytest.approx(0.75 * before.output_tokens_per_second, rel=0.02)
    assert after.completed_per_second == pytest.approx(0.75 * before.completed_per_second, rel=0.02)


def test_the_page_shows_how_many_went_on_elsewhere(tmp_path: Path) -> None:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 0, baseline=SimulatedPath(), speculative=SimulatedPath(loses=one_in_four))
    page = render_html(measure(config(), fleet, clock, open_file(config(), tmp_path / "run.jsonl")))
    table = page[page.index("<h2>Figures</h2>") :].partition("</table>")[0]
    headings = re.findall(r"<th>(.*?)</th>", table)
    row = re.findall(r"<td>(.*?)</td>", table[table.index("<td>speculative, ") :])
    shown = dict(zip(headings, row, strict=True))
    assert (shown["requests"], shown["bad"], shown["fallbacks"]) == ("32", "8", "8")


def test_a_path_whose_first_request_another_replica_finished_is_not_measured(tmp_path: Path) -> None:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 0, baseline=SimulatedPath(), speculative=SimulatedPath(loses=lambda seed: True))
    with pytest.raises(ConfigError, match="path 'speculative' lost a request that another replica finished"):
        measure(config(), fleet, clock, open_file(config(), tmp_path / "run.jsonl"))

"""What a rollout takes from a matrix: winning cells, draft lengths, the measured traffic, and how to measure again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from canary.plan import read_plan
from deploy.evidence.acceptance_spans import predicted
from deploy.evidence.config import parse_matrix
from deploy.evidence.draft_lengths import best_length
from deploy.evidence.measure import write_report
from deploy.evidence.measured import ServerFigures
from deploy.evidence.predicted import Predictor
from deploy.evidence.result import CellResult, MatrixResult, read_result
from deploy.evidence.summary import evidence_for, overall, renewal, winning_cells
from deploy.evidence.verdicts import Decision
from deploy.plan_file import read_plan_file
from fleet.errors import ConfigError
from fleet.traffic import SamplingMode
from tests.deploy.evidence.bench import cell_of, config_of, measure, open_file
from tests.deploy.evidence.simulated import SimulatedFleet, SimulatedPath, VirtualClock

FINGERPRINTS = {"baseline": {"engine.max_num_seqs": "16"}, "speculative": {"engine.max_num_seqs": "16"}}
PLAN = {
    "stable": "baseline",
    "canary": "speculative",
    "evidence": "evidence",
    "steps": [{"weight": 50, "bake": "60s"}, {"weight": 100}],
}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> MatrixResult:
    """Speculation wins on greedy answers and loses on sampled ones."""
    clock = VirtualClock()
    speculative = SimulatedPath(
        base=0.03, draft=4, acceptance=0.6, noise=0.02, factor=lambda temperature, _: 3.0 if temperature > 0 else 1.0
    )
    fleet = SimulatedFleet(clock, 1, baseline=SimulatedPath(noise=0.02), speculative=speculative)
    config = config_of(load={"concurrency": [1, 3]}, rounds=8, requests=4, workload={"max_tokens": 20})
    file = open_file(config, tmp_path_factory.mktemp("run") / "run.jsonl")
    return replace(measure(config, fleet, clock, file), fingerprints=FINGERPRINTS)


@pytest.fixture
def folder(tmp_path: Path, result: MatrixResult) -> Path:
    (tmp_path / "evidence").mkdir()
    write_report(result, tmp_path / "evidence")
    return tmp_path / "evidence"


def decided(cell: CellResult, decision: Decision) -> CellResult:
    return replace(cell, verdict=replace(cell.verdict, decision=decision))


def test_the_cells_that_win_become_sampling_modes_and_ranges_of_load(folder: Path) -> None:
    evidence = evidence_for(folder, "baseline", "speculative")
    assert [(cell.sampling, cell.above, cell.up_to) for cell in evidence.cells] == [
        (SamplingMode.GREEDY, 0, 1),
        (SamplingMode.GREEDY, 1, 3),
    ]
    assert evidence.decision == "inconclusive"
    assert evidence.peak_open == 3
    assert evidence.fingerprints == FINGERPRINTS


def test_the_measured_traffic_is_one_levels_requests_by_kind_and_acceptance_has_a_range(folder: Path) -> None:
    evidence = evidence_for(folder, "baseline", "speculative")
    assert evidence.kinds == {"greedy/≤256/≤32": 32, "sampled/≤256/≤32": 32}
    spans = evidence.acceptance
    assert set(spans) == {SamplingMode.GREEDY, SamplingMode.SAMPLED}
    assert all(0 <= span.low < span.high <= 1 for span in spans.values())


def test_the_prediction_interval_is_that_of_the_t_distribution() -> None:
    # t(0.975, 4) = 2.7764, s = 0.05·√2.5, √(1 + 1/5).
    low, high = predicted([0.4, 0.45, 0.5, 0.55, 0.6])
    assert (low + high) / 2 == pytest.approx(0.5)
    assert (high - low) / 2 == pytest.approx(2.7764 * 0.0790569 * 1.0954451, rel=1e-4)
    assert predicted([0.99, 1.0, 0.98, 1.0, 0.97])[1] == 1.0


@pytest.mark.parametrize(
    ("decisions", "expected"),
    [
        ((Decision.KEEP, Decision.KEEP), "keep"),
        ((Decision.KEEP, Decision.DROP), "inconclusive"),
        ((Decision.DROP, Decision.INCONCLUSIVE), "drop"),
        ((Decision.INCONCLUSIVE, Decision.REFUSED), "inconclusive"),
    ],
)
def test_as_a_whole_it_is_dropped_only_where_something_costs_and_nothing_pays(
    result: MatrixResult, decisions: tuple[Decision, ...], expected: str
) -> None:
    assert overall([decided(result.cells[0], decision) for decision in decisions]) == expected


def test_a_mode_measured_in_several_ways_wins_where_all_of_them_do(result: MatrixResult) -> None:
    config = parse_matrix({**result.config, "sampling": {"warm": {"temperature": 0.5}, "hot": {"temperature": 1}}}, "t")
    cell = cell_of(result, "c3/greedy")
    ways = [replace(decided(cell, Decision.KEEP), sampling=name) for name in ("warm", "hot")]
    assert [(won.sampling, won.up_to) for won in winning_cells(ways, config)] == [(SamplingMode.SAMPLED, 3)]
    assert list(winning_cells([ways[0], decided(ways[1], Decision.INCONCLUSIVE)], config)) == []


def timed(cell: CellResult, draft_seconds: float | None) -> CellResult:
    plain = replace(cell.baseline_figures, server=ServerFigures(verify_seconds=0.020))
    server = ServerFigures(verify_seconds=0.022, draft_seconds=draft_seconds, wire_seconds=0.001)
    return replace(cell, baseline_figures=plain, candidate_figures=replace(cell.candidate_figures, server=server))


def test_dear_drafts_are_kept_short_and_cheap_ones_long(result: MatrixResult) -> None:
    cell = cell_of(result, "c1/greedy")
    assert best_length(timed(cell, 0.0)) == 4
    dear = best_length(timed(cell, 0.080))
    assert dear is not None
    assert dear < 4
    assert best_length(timed(cell, None)) is None
    assert best_length(cell) is None


@pytest.mark.parametrize("draft_seconds", [0.0, 0.01, 0.03, 0.08, 0.3])
def test_the_chosen_length_brings_most_tokens_per_second(result: MatrixResult, draft_seconds: float) -> None:
    cell = timed(cell_of(result, "c1/greedy"), draft_seconds)
    accepted = cell.candidate_figures.acceptance
    assert accepted is not None
    mean_length = accepted.drafted / accepted.rounds
    rates = {
        k: (1 + sum(accepted.by_position[:k])) / (0.020 + 0.001 + k / mean_length * (0.002 + draft_seconds))
        for k in range(1, 5)
    }
    assert rates[best_length(cell) or 0] == max(rates.values())


def test_the_command_that_renews_measures_the_same_into_a_new_folder(folder: Path, result: MatrixResult) -> None:
    command = renewal(folder)
    assert command == f"fleet bench matrix -f {folder}/matrix.yaml -o {folder}-2"
    assert renewal(folder / "report.json") == command
    (folder.parent / "evidence-2").mkdir()
    assert renewal(folder).endswith("evidence-3")
    again = parse_matrix(yaml.safe_load((folder / "matrix.yaml").read_text()), "again")
    assert again == parse_matrix(result.config, "first")


def test_a_report_alone_is_measured_again_by_what_it_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "matrix.yaml").unlink()
    assert renewal(folder) == renewal(folder / "report.json")
    assert renewal(folder) == f"fleet bench matrix -f {folder}/report.json -o {folder}-2"
    named = (folder / "report.json").rename(folder / "july.json")
    (folder / "matrix.yaml").write_text("of another matrix")
    assert renewal(named) == f"fleet bench matrix -f {named} -o {folder}-2"
    monkeypatch.chdir(folder)
    assert renewal(Path("july.json")) == f"fleet bench matrix -f july.json -o {folder}-2"
    assert renewal(Path()).endswith(f" -o {folder}-2")


def test_evidence_about_something_else_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="measured speculative beside 'baseline', not 'ngram' beside 'baseline'"):
        evidence_for(folder, "baseline", "ngram")
    with pytest.raises(ConfigError, match="not 'speculative' beside 'other'"):
        evidence_for(folder, "other", "speculative")


def test_evidence_of_a_run_that_is_not_complete_is_refused_with_the_command_that_completes_it(
    folder: Path, result: MatrixResult
) -> None:
    write_report(replace(result, rounds_done=5), folder)
    again = f"holds 5 of 8 rounds.*; measure it again: fleet bench matrix -f {folder}/matrix.yaml -o {folder}-2$"
    with pytest.raises(ConfigError, match=again):
        evidence_for(folder, "baseline", "speculative")
    (folder / "run.jsonl").touch()
    finish = f"holds 5 of 8 rounds.*: fleet bench matrix -f {folder}/matrix.yaml -o {folder}$"
    with pytest.raises(ConfigError, match=finish):
        evidence_for(folder, "baseline", "speculative")


def written(folder: Path, **changes: Any) -> Path:
    file = folder.parent / "plan.yaml"
    file.write_text(yaml.safe_dump({**PLAN, **changes}))
    return file


def test_a_plan_file_names_the_folder_beside_it_and_is_sent_with_what_it_holds(folder: Path) -> None:
    plan = read_plan(read_plan_file(written(folder, speculate="where_it_wins")))
    assert plan.matrix == evidence_for(folder, "baseline", "speculative")
    cells = plan.eligibility().cells
    assert cells is not None
    assert len(cells) == 2


def test_the_acceptance_guardrail_may_refer_to_the_evidence(folder: Path) -> None:
    limit = {"acceptance": {"max_decrease": "10%", "reference": "evidence"}}
    plan = read_plan(read_plan_file(written(folder, guardrails=limit)))
    assert plan.matrix is not None
    assert plan.guardrails.acceptance is not None
    middles = [(span.low + span.high) / 2 for span in plan.matrix.acceptance.values()]
    assert plan.guardrails.acceptance.reference == pytest.approx(min(middles))


def test_a_folder_without_a_report_is_one_clear_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"plan.yaml: cannot read .*nowhere"):
        read_plan_file(written(folder, evidence="nowhere"))
    assert read_plan_file(written(folder, evidence=None))["evidence"] is None


def test_where_it_wins_acceptance_is_expected_of_drafts_as_short_as_they_will_be(
    tmp_path: Path, result: MatrixResult
) -> None:
    folder = tmp_path / "evidence"
    folder.mkdir()
    write_report(replace(result, cells=tuple(timed(cell, 0.080) for cell in result.cells)), folder)
    limit = {"acceptance": {"max_decrease": "10%", "reference": "evidence"}}
    always, partial = (
        read_plan(read_plan_file(written(folder, guardrails=limit, speculate=rule)))
        for rule in ("always", "where_it_wins")
    )
    assert always.matrix is not None
    assert {cell.draft_length for cell in always.matrix.cells} == {1}
    whole, won = always.matrix.acceptance[SamplingMode.GREEDY], [cell.acceptance for cell in always.matrix.cells]
    # The simulated path accepts each token with 0.6 after the one before it: a mean of 0.33 over four.
    assert whole.middle == pytest.approx(0.33, abs=0.05)
    assert [span.middle for span in won if span is not None] == [pytest.approx(0.6, abs=0.06)] * 2
    assert partial.guardrails.acceptance is not None
    assert partial.guardrails.acceptance.reference == min(span.middle for span in won if span is not None)
    assert always.guardrails.acceptance is not None
    assert always.guardrails.acceptance.reference == pytest.approx(whole.middle, abs=0.05)


def test_the_planner_predicts_every_cell_with_the_acceptance_measured_in_it(result: MatrixResult) -> None:
    given = {"model": "llama-3.1-8b", "gpu": "H200", "proposers": {"speculative": "eagle3,k=4"}}
    config = config_of(predict=given)
    assert config.predict is not None
    predictions = {item.condition: item.speed_up for item in Predictor(config.predict).predictions(result.cells)}
    assert set(predictions) == {cell.condition for cell in result.cells}
    accepted = cell_of(result, "c1/greedy").candidate_figures.acceptance
    assert accepted is not None
    assert 1.0 < predictions["c1/greedy"] < accepted.mean_accepted_length


def test_a_prediction_that_cannot_be_made_is_refused_before_the_run() -> None:
    config = config_of(predict={"model": "llama-3.1-8b", "gpu": "H2000", "proposers": {"speculative": "eagle3"}})
    assert config.predict is not None
    with pytest.raises(ConfigError, match="GPU 'H2000' is not known"):
        Predictor(config.predict)


def test_what_was_written_is_read_again(folder: Path, result: MatrixResult) -> None:
    assert read_result(folder) == result


def test_what_is_lost_by_length_where_the_cell_is_kept_goes_with_the_evidence(
    tmp_path: Path, result: MatrixResult
) -> None:
    folder = tmp_path / "evidence"
    folder.mkdir()
    cell = decided(cell_of(result, "c1/greedy"), Decision.KEEP)
    dropped = replace(cell.verdict, decision=Decision.DROP)
    slices = tuple(replace(part, verdict=dropped) if part.kind == "bucket" else part for part in cell.slices)
    write_report(replace(result, cells=(replace(cell, slices=slices), *result.cells[1:])), folder)
    assert evidence_for(folder, "baseline", "speculative").losing == ("(prompt ≤256, output ≤32) in greedy at 1 open",)

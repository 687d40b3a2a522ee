from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.evidence.assess import RunFacts, assess
from deploy.evidence.config import MatrixConfig
from deploy.evidence.matrix import Inputs, levels
from deploy.evidence.measured import MeasuredBlock, Timing
from deploy.evidence.result import CellResult, MatrixResult
from deploy.evidence.run import Progress
from deploy.evidence.verdicts import Decision
from fleet.errors import ConfigError
from tests.deploy.evidence.bench import PROMPTS, cell_of, config_of, measure, open_file
from tests.deploy.evidence.simulated import SimulatedFleet, SimulatedPath, VirtualClock


def planted(change: float) -> SimulatedPath:
    """Slower or faster by a share in one cell: sampled answers with more than one sequence running."""
    return SimulatedPath(factor=lambda temperature, running: change if temperature > 0 and running > 1 else 1.0)


def test_an_a_a_matrix_keeps_and_drops_nothing(tmp_path: Path) -> None:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 0, baseline=SimulatedPath())
    config = config_of(candidates=["baseline"], seed=0, rounds=5, requests=3, workload={"max_tokens": 5})
    result = measure(config, fleet, clock, open_file(config, tmp_path / "run.jsonl"))
    assert {cell.candidate for cell in result.cells} == {"baseline-again"}
    assert [cell.verdict.decision for cell in result.cells] == [Decision.INCONCLUSIVE] * 4


@pytest.mark.patient
def test_of_many_a_a_cells_at_most_one_in_twenty_is_decided(tmp_path: Path) -> None:
    decided = cells = 0
    for seed in range(25):
        clock = VirtualClock()
        fleet = SimulatedFleet(clock, 100 + seed, baseline=SimulatedPath(noise=0.08))
        config = config_of(candidates=["baseline"], seed=seed, rounds=6, requests=3, workload={"max_tokens": 6})
        result = measure(config, fleet, clock, open_file(config, tmp_path / f"{seed}.jsonl"))
        cells += len(result.cells)
        decided += sum(cell.verdict.decision is not Decision.INCONCLUSIVE for cell in result.cells)
    assert cells == 100
    assert decided <= 5


@pytest.mark.parametrize(("factor", "decision"), [(1.10, Decision.DROP), (0.90, Decision.KEEP)])
def test_a_planted_effect_is_found_in_its_cell_and_nowhere_else(
    tmp_path: Path, factor: float, decision: Decision
) -> None:
    clock = VirtualClock()
    fleet = SimulatedFleet(
        clock, 7, baseline=SimulatedPath(noise=0.02), speculative=replace(planted(factor), noise=0.02)
    )
    config = config_of(rounds=7, workload={"max_tokens": 10})
    result = measure(config, fleet, clock, open_file(config, tmp_path / "run.jsonl"))
    decisions = {cell.condition: cell.verdict.decision for cell in result.cells}
    assert decisions.pop("c4/sampled") is decision, cell_of(result, "c4/sampled").verdict
    assert set(decisions.values()) == {Decision.INCONCLUSIVE}
    gain = cell_of(result, "c4/sampled").verdict.gain
    assert gain is not None
    assert gain.low < 1 / factor < gain.high or gain.estimate == pytest.approx(1 / factor, rel=0.03)


def test_a_speculative_path_that_is_faster_is_kept_with_its_acceptance_and_equal_answers(tmp_path: Path) -> None:
    clock = VirtualClock()
    fleet = SimulatedFleet(
        clock, 3, baseline=SimulatedPath(), speculative=SimulatedPath(base=0.03, draft=4, acceptance=0.8)
    )
    config = config_of(load={"concurrency": [2]}, workload={"max_tokens": 24}, sampling={"greedy": {"temperature": 0}})
    result = measure(config, fleet, clock, open_file(config, tmp_path / "run.jsonl"))
    (cell,) = result.cells
    accepted = cell.candidate_figures.acceptance
    assert cell.verdict.decision is Decision.KEEP, cell.verdict
    assert cell.equal_answers == 1.0
    assert accepted is not None
    assert list(accepted.by_position) == sorted(accepted.by_position, reverse=True)
    assert accepted.mean_accepted_length == pytest.approx(1 + sum(accepted.by_position))
    assert {part.kind for part in cell.slices} == {"bucket", "category"}
    assert sum(part.pairs for part in cell.slices if part.kind == "category") == 24
    assert "speculative pays in 1 of 1 cells" in result.recommendation


def test_routing_by_evidence_is_measured_beside_always_speculating(tmp_path: Path) -> None:
    clock = VirtualClock()
    wins_greedy = SimulatedPath(
        base=0.012, noise=0.02, factor=lambda temperature, running: 3.0 if temperature > 0 else 1.0
    )
    fleet = SimulatedFleet(clock, 5, baseline=SimulatedPath(noise=0.02), speculative=wins_greedy)
    fleet.route = lambda body: "baseline" if body["temperature"] > 0 else "speculative"
    config = config_of(candidates=["speculative", "routed"], load={"concurrency": [2]}, rounds=5)
    result = measure(config, fleet, clock, open_file(config, tmp_path / "run.jsonl"))
    (effect,) = result.routing
    assert effect.always == "speculative"
    assert effect.over_baseline.low > 1.1
    assert effect.always_over_baseline.high < 1.0
    assert effect.over_always.low > 1.2
    assert effect.over_always.estimate == pytest.approx(
        effect.over_baseline.estimate / effect.always_over_baseline.estimate
    )
    assert "routing by evidence is" in result.recommendation
    assert "Roll routed out" not in result.recommendation
    assert cell_of_routed(result, "c2/sampled").verdict.decision is Decision.INCONCLUSIVE


def cell_of_routed(result: MatrixResult, condition: str) -> CellResult:
    (cell,) = (cell for cell in result.cells if (cell.condition, cell.candidate) == (condition, "routed"))
    return cell


def test_both_arms_are_asked_the_same_with_the_same_seeds_in_turns(tmp_path: Path) -> None:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 0, baseline=SimulatedPath(), speculative=SimulatedPath())
    config = config_of(load={"concurrency": [1]}, rounds=2, sampling={"greedy": {"temperature": 0}})
    measure(config, fleet, clock, open_file(config, tmp_path / "run.jsonl"))
    asked = fleet.asked[2:]  # after the two checks
    blocks: list[tuple[str, list[tuple[str, int]]]] = []
    for path, body in asked:
        if not blocks or blocks[-1][0] != path or len(blocks[-1][1]) == 6:
            blocks.append((path, []))
        blocks[-1][1].append((body["messages"][0]["content"], body["seed"]))
    assert [path for path, _ in blocks] == ["baseline", "speculative", "speculative", "baseline"]
    assert blocks[0][1] == blocks[1][1]
    assert blocks[2][1] == blocks[3][1]
    assert not set(blocks[0][1]) & set(blocks[2][1])


def test_a_slow_client_is_noticed_and_the_cell_is_refused(tmp_path: Path) -> None:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 0, baseline=SimulatedPath(), speculative=SimulatedPath(base=0.012))
    fleet.client_cost = 0.006
    config = config_of(load={"concurrency": [1, 4]}, rounds=5, sampling={"greedy": {"temperature": 0}})
    result = measure(config, fleet, clock, open_file(config, tmp_path / "run.jsonl"))
    cell = cell_of(result, "c4/greedy")
    assert cell.verdict.decision is Decision.REFUSED
    assert "the client was the bottleneck" in cell.verdict.reason
    assert "the client was the bottleneck" in result.recommendation


def stalled(tmp_path: Path, *, stall: tuple[float, float] | None) -> MatrixResult:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 0, baseline=SimulatedPath(), speculative=SimulatedPath(stall=stall))
    config = config_of(
        load={"rate": [8.0], "max_open": 3}, rounds=1, requests=40, sampling={"greedy": {"temperature": 0}}
    )
    return measure(config, fleet, clock, open_file(config, tmp_path / f"{stall}.jsonl"))


def test_a_stall_shows_in_the_latency_from_the_scheduled_time_though_few_requests_were_open(tmp_path: Path) -> None:
    healthy = stalled(tmp_path, stall=None).cells[0].candidate_figures
    stall = stalled(tmp_path, stall=(1009.0, 3.0)).cells[0].candidate_figures
    assert healthy.e2e is not None
    assert healthy.e2e.p95 < 0.6
    assert stall.e2e is not None
    assert stall.e2e_from_sent is not None
    # Three requests were open and saw the stall; the dozens that were due meanwhile waited in the client.
    assert stall.e2e_from_sent.p50 < 0.6
    assert stall.e2e.p95 > 2.0
    assert stall.ttft is not None
    assert stall.ttft.p95 > 2.0


def test_a_run_that_was_killed_goes_on_and_runs_a_torn_round_again(tmp_path: Path) -> None:
    config = config_of(load={"concurrency": [1]}, rounds=3, sampling={"greedy": {"temperature": 0}})
    path = tmp_path / "run.jsonl"
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 0, baseline=SimulatedPath(), speculative=SimulatedPath())
    whole = measure(config, fleet, clock, open_file(config, path))
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + 6
    # Killed in the third block of six, in the middle of writing its line.
    path.write_bytes(b"".join(lines[:4]) + lines[4][:100])
    notes: list[Progress] = []
    again = measure(config, fleet, clock, open_file(config, path), notes=notes)
    assert [note.done for note in notes] == [2, 3, 4, 5, 6]
    assert again.rounds_done == whole.rounds_done == 3
    assert notes[0].seconds_left is not None
    file = open_file(config, path)
    assert len(file.blocks) == 3 + 4
    assert len(file.whole_rounds(["baseline", "speculative"])) == 6


def test_to_stop_when_it_looks_good_decides_nothing_and_to_finish_does(tmp_path: Path) -> None:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 3, baseline=SimulatedPath(), speculative=SimulatedPath(base=0.01))
    config = config_of(load={"concurrency": [1, 2]}, rounds=8, sampling={"greedy": {"temperature": 0}})
    path = tmp_path / "run.jsonl"
    whole = measure(config, fleet, clock, open_file(config, path))
    assert {cell.verdict.decision for cell in whole.cells} == {Decision.KEEP}
    early = assessed(config, open_file(config, path).blocks[: 4 * 6])
    assert early.rounds_done == 6
    assert {cell.verdict.decision for cell in early.cells} == {Decision.INCONCLUSIVE}
    assert all("it would be keep" in cell.verdict.reason for cell in early.cells)
    # The first cell has all its rounds, the second one none: it is not as if there were only the first.
    half = assessed(config, [block for block in open_file(config, path).blocks if block.condition == "c1/greedy"])
    assert half.rounds_done == 0
    assert [cell.verdict.decision for cell in half.cells] == [Decision.INCONCLUSIVE]


def assessed(config: MatrixConfig, blocks: Sequence[MeasuredBlock]) -> MatrixResult:
    facts = RunFacts(0.0, "simulated", has_content=True, levels=levels(config), throughput_by_concurrency={})
    return assess(config, facts, blocks)


@pytest.mark.parametrize(("noisy", "decision"), [(2, Decision.KEEP), (3, Decision.REFUSED)])
def test_a_client_that_is_slow_in_a_block_or_two_refuses_nothing_and_in_a_third_of_them_it_does(
    tmp_path: Path, noisy: int, decision: Decision
) -> None:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 3, baseline=SimulatedPath(), speculative=SimulatedPath(base=0.01))
    config = config_of(load={"concurrency": [1]}, rounds=8, sampling={"greedy": {"temperature": 0}})
    file = open_file(config, tmp_path / "run.jsonl")
    measure(config, fleet, clock, file)
    blocks = [
        replace(block, client_lag=0.5) if block.arm == "baseline" and block.round < noisy else block
        for block in file.blocks
    ]
    (cell,) = assessed(config, blocks).cells
    assert cell.verdict.decision is decision


def test_a_path_that_remembers_its_answers_is_not_judged_by_questions_that_come_again(tmp_path: Path) -> None:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 3, baseline=SimulatedPath(), speculative=SimulatedPath(base=0.01))
    config = config_of(load={"concurrency": [1]}, rounds=5, sampling={"greedy": {"temperature": 0}})
    file = open_file(config, tmp_path / "run.jsonl")
    measure(config, fleet, clock, file)
    for kept, decision in (("10000", Decision.REFUSED), ("0", Decision.KEEP)):
        parts = {"speculative.method": "suffix", "speculative.suffix_decoding_max_cached_requests": kept}
        facts = RunFacts(0.0, "simulated", True, levels(config), {}, {"speculative": parts})
        (cell,) = assess(config, facts, file.blocks).cells
        assert cell.verdict.decision is decision, cell.verdict


def test_the_levels_are_found_where_throughput_stops_growing(tmp_path: Path) -> None:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 0, baseline=SimulatedPath(most=8), speculative=SimulatedPath(most=8))
    config = config_of(load={"concurrency": "auto"}, rounds=1, sampling={"greedy": {"temperature": 0}})
    result = measure(config, fleet, clock, open_file(config, tmp_path / "run.jsonl"))
    found = {cell.level.name: cell.level.concurrency for cell in result.cells}
    assert found == {"low": 1, "medium": 3, "peak": 8}
    assert list(result.throughput_by_concurrency) == [1, 2, 4, 8, 16]


def test_the_lengths_of_a_trace_never_give_a_verdict(tmp_path: Path) -> None:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 0, baseline=SimulatedPath(), speculative=SimulatedPath(base=0.01))
    config = config_of(load={"concurrency": [2]}, rounds=5, sampling={"greedy": {"temperature": 0}})
    inputs = Inputs(replace(PROMPTS, has_content=False))
    result = measure(config, fleet, clock, open_file(config, tmp_path / "run.jsonl"), inputs=inputs)
    (cell,) = result.cells
    assert cell.verdict.decision is Decision.REFUSED
    assert "depends on the text" in cell.verdict.reason


def test_a_path_that_the_fleet_does_not_have_is_one_clear_error(tmp_path: Path) -> None:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 0, baseline=SimulatedPath())
    config = config_of()
    with pytest.raises(ConfigError, match=r"path 'speculative' does not answer.*no path speculative"):
        measure(config, fleet, clock, open_file(config, tmp_path / "run.jsonl"))


def test_requests_have_the_same_latencies_by_the_stopwatch_as_in_the_load_tool(tmp_path: Path) -> None:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 0, baseline=SimulatedPath(noise=0.0, slope=0.0), speculative=SimulatedPath())
    config = config_of(load={"concurrency": [1]}, rounds=1, sampling={"greedy": {"temperature": 0}})
    file = open_file(config, tmp_path / "run.jsonl")
    measure(config, fleet, clock, file)
    (block,) = (block for block in file.blocks if block.arm == "baseline")
    for request in block.requests:
        timing = Timing.of(request)
        assert timing.tpot == pytest.approx(0.020)
        assert timing.ttft == pytest.approx(0.020 + 0.0001 * request.prompt_tokens)
        assert timing.e2e == pytest.approx(0.020 * 12 + 0.0001 * request.prompt_tokens)
    assert block.window_tokens / block.window_seconds == pytest.approx(12 / 0.2408, rel=0.02)

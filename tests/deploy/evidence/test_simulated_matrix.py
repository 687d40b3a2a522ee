from dataclasses import replace
from pathlib import Path

import pytest

from deploy.evidence.measured import Timing
from deploy.evidence.result import MatrixResult
from deploy.evidence.run import Progress
from deploy.evidence.verdicts import Decision
from fleet.errors import ConfigError
from tests.deploy.evidence.bench import PROMPTS, cell_of, config_of, measure, open_file
from tests.deploy.evidence.simulated import SimulatedFleet, SimulatedPath, VirtualClock

from deploy.evidence.matrix import Inputs


def planted(change: float) -> SimulatedPath:
    """Slower or faster by a share in one cell: sampled answers with more than one sequence running."""
    return SimulatedPath(factor=lambda temperature, running: change if temperature > 0 and running > 1 else 1.0)


def test_an_a_a_matrix_keeps_and_drops_nothing(tmp_path: Path) -> None:
    decided = cells = 0
    for seed in range(4):
        clock = VirtualClock()
        fleet = SimulatedFleet(clock, seed, baseline=SimulatedPath())
        config = config_of(candidates=["baseline"], seed=seed, rounds=5, workload={"max_tokens": 6})
        result = measure(config, fleet, clock, open_file(config, tmp_path / f"{seed}.jsonl"))
        assert {cell.candidate for cell in result.cells} == {"baseline-again"}
        cells += len(result.cells)
        decided += sum(cell.verdict.decision is not Decision.INCONCLUSIVE for cell in result.cells)
    assert cells == 16
    assert decided == 0


@pytest.mark.parametrize(("factor", "decision"), [(1.10, Decision.DROP), (0.85, Decision.KEEP)])
def test_a_planted_effect_is_found_in_its_cell_and_nowhere_else(
    tmp_path: Path, factor: float, decision: Decision
) -> None:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 7, baseline=SimulatedPath(noise=0.02), speculative=replace(planted(factor), noise=0.02))
    config = config_of(rounds=8)
    result = measure(config, fleet, clock, open_file(config, tmp_path / "run.jsonl"))
    decisions = {cell.condition: cell.verdict.decision for cell in result.cells}
    assert decisions.pop("c4/sampled") is decision, cell_of(result, "c4/sampled").verdict
    assert set(decisions.values()) == {Decision.INCONCLUSIVE}
    gain = cell_of(result, "c4/sampled").verdict.gain
    assert gain is not None
    assert gain.low < 1 / factor < gain.high or gain.estimate == pytest.approx(1 / factor, rel=0.03)

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.evidence.bootstrap import Interval
from deploy.evidence.recommendation import recommend
from deploy.evidence.result import CellResult
from deploy.evidence.verdicts import CellVerdict, Decision
from tests.deploy.evidence.bench import config_of, measure, open_file
from tests.deploy.evidence.simulated import SimulatedFleet, SimulatedPath, VirtualClock


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Sequence[CellResult]:
    folder: Path = tmp_path_factory.mktemp("run")
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 0, baseline=SimulatedPath(), speculative=SimulatedPath())
    config = config_of(load={"concurrency": [1, 2, 4]}, rounds=1, requests=1, sampling={"greedy": {"temperature": 0}})
    return measure(config, fleet, clock, open_file(config, folder / "run.jsonl")).cells


def told(cells: Sequence[CellResult], *decisions: Decision, rounds_done: int = 8) -> str:
    judged = [
        replace(cell, verdict=CellVerdict(decision, "the reason", Interval(1.0 + n / 10, 0.9, 1.5), 1.0, 1.0, ()))
        for n, (cell, decision) in enumerate(zip(cells, decisions, strict=True), start=1)
    ]
    return recommend(judged, "tpot", rounds_done, 8)


def test_what_pays_everywhere_is_rolled_out_by_a_canary(cells: Sequence[CellResult]) -> None:
    text = told(cells, *[Decision.KEEP] * 3)
    assert text.startswith("speculative pays in 3 of 3 cells (greedy at 1 open, greedy at 2 open, greedy at 4 open)")
    assert "decoding 1.10× to 1.30× as fast" in text
    assert text.endswith("Roll speculative out, by a canary.")


def test_what_pays_here_and_costs_there_is_used_only_where_it_pays(cells: Sequence[CellResult]) -> None:
    text = told(cells, Decision.KEEP, Decision.INCONCLUSIVE, Decision.DROP)
    assert "It costs in greedy at 4 open (the reason)." in text
    assert "Nothing is shown either way in greedy at 2 open." in text
    assert text.endswith("Use speculative only where it pays, and leave the rest on the baseline.")


def test_what_pays_nowhere_is_not_rolled_out(cells: Sequence[CellResult]) -> None:
    assert told(cells, *[Decision.DROP] * 3).endswith("Do not roll it out.")
    assert told(cells, *[Decision.INCONCLUSIVE] * 3).endswith("Stay on the baseline until there is evidence.")
    refused = told(cells, *[Decision.REFUSED] * 3)
    assert "Not judged:" in refused
    assert "because the reason." in refused


def test_a_run_that_ended_early_gives_no_advice(cells: Sequence[CellResult]) -> None:
    text = told(cells, *[Decision.KEEP] * 3, rounds_done=3)
    assert text.startswith("No advice yet: 3 of 8 rounds are measured")
    assert "speculative" not in text

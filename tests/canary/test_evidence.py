"""A rollout and its evidence: refused when stale, checked again when the canary is there, kept after promotion."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from canary.events import RolloutStarted, SetSplit
from canary.plan import cautions, doubts, read_plan
from canary.rollout_state import State, begin, split_of
from fleet.errors import BadRequest, ConfigError
from fleet.traffic import ReplicaReport, SamplingMode, WinningCell
from tests.canary.evidence import MEASURED, matrix_evidence, plan_on
from tests.canary.world import World


def report(world: World, path: str, weights: str) -> None:
    fingerprint = (("model.weights", weights),)
    world.controller.replica_report(ReplicaReport(path, f"{path}-0", 1, 0, 0, 0, 1, 0, 0, fingerprint=fingerprint))


@pytest.mark.parametrize(
    ("changes", "live", "explanation"),
    [
        ({"decision": "drop", "recommendation": "Do not."}, {}, "evidence in evidence speaks against it: Do not."),
        ({"fingerprints": {"baseline": {"a": "1"}}}, {}, "does not say on which fleet path 'speculative' was measured"),
        ({"cells": []}, {}, "shows no closed-loop cell where it wins"),
        (
            {},
            {"baseline": {"model.weights": "xyz"}},
            "is stale: baseline: model.weights was abc, is xyz; "
            "renew it: fleet bench matrix -f evidence/matrix.yaml -o evidence-2",
        ),
    ],
)
def test_evidence_that_does_not_carry_a_rollout_is_refused_with_the_reason(
    changes: dict[str, Any], live: dict[str, dict[str, str]], explanation: str
) -> None:
    plan = read_plan(plan_on(matrix_evidence(**changes), speculate="where_it_wins"))
    (doubt,) = doubts(plan, live)
    assert explanation in doubt


def test_fresh_evidence_and_none_at_all_are_accepted() -> None:
    assert doubts(read_plan(plan_on(matrix_evidence())), MEASURED) == []
    assert doubts(read_plan({**plan_on(matrix_evidence()), "evidence": None}), {"baseline": {"x": "1"}}) == []


def test_a_folder_means_nothing_to_the_controller() -> None:
    (doubt,) = doubts(read_plan({**plan_on(matrix_evidence()), "evidence": "my-folder"}), {})
    assert "'my-folder' is a folder of yours" in doubt


@pytest.mark.parametrize(
    ("changes", "explanation"),
    [({"evidence": None}, "where_it_wins needs evidence"), ({"holdback": 2}, "takes no holdback")],
)
def test_where_it_wins_needs_evidence_and_no_holdback(changes: dict[str, Any], explanation: str) -> None:
    with pytest.raises(ConfigError, match=explanation):
        read_plan({**plan_on(matrix_evidence(), speculate="where_it_wins"), **changes})


def test_the_eligibility_is_the_winning_cells_and_stays_so_after_promotion() -> None:
    cell = WinningCell(SamplingMode.GREEDY, 0, 4, 3)
    partial = read_plan(plan_on(matrix_evidence(), speculate="where_it_wins"))
    assert partial.eligibility().cells == (cell,)
    assert read_plan(plan_on(matrix_evidence())).eligibility().cells is None
    rollout = begin(RolloutStarted(0.0, "r", plan_on(matrix_evidence(), speculate="where_it_wins")))
    promoted = replace(rollout, state=State.PROMOTED, capacity=replace(rollout.capacity, ready=1))
    assert split_of(promoted) == SetSplit("baseline", "speculative", 100.0)
    always = replace(begin(RolloutStarted(0.0, "r", plan_on(matrix_evidence()))), state=State.PROMOTED)
    assert split_of(always) == SetSplit("speculative", None, 0.0)


def test_a_start_on_stale_evidence_is_refused_with_the_command_that_renews_it(tmp_path: Path) -> None:
    world = World(tmp_path, replicas={"baseline": 0, "speculative": 0})
    report(world, "baseline", "other")
    with pytest.raises(BadRequest, match=r"is stale: .*model.weights was abc, is other.*renew it: fleet bench matrix"):
        world.command("start", plan=plan_on(matrix_evidence()))
    assert world.controller.status()["rollout"] is None


def test_a_canary_that_comes_up_as_another_than_was_measured_gets_no_traffic(tmp_path: Path) -> None:
    world = World(tmp_path, replicas={"baseline": 0, "speculative": 0})
    world.command("start", plan=plan_on(matrix_evidence()))
    assert world.rollout["state"] == "preparing"
    report(world, "speculative", "other")
    world.controller.tick()
    assert world.rollout["state"] == "aborted"
    assert world.rollout["reason"].startswith("by the controller: ")
    assert "speculative: model.weights was abc, is other" in world.rollout["reason"]
    assert world.controller.status()["split"]["canary"] is None


def test_the_winning_cells_survive_a_restart_and_reach_the_routers(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run(6)
    world.command("start", plan=plan_on(matrix_evidence(), speculate="where_it_wins"))
    world.run(2)
    assert world.fleet[0].split.canary == "speculative"
    cells = world.fleet[0].split.eligible.cells
    assert cells == (WinningCell(SamplingMode.GREEDY, 0, 4, 3),)
    world.restart()
    world.run(2)
    assert world.fleet[0].exchange(world.controller).split.eligible.cells == cells
    evidence = world.controller.status()["evidence"]
    assert (evidence["folder"], evidence["canary"], evidence["is_stale"]) == ("evidence", "speculative", False)
    assert b'fleet_evidence_stale{reason="traffic_mix"} 0.0' in world.controller.metrics()


def test_promotion_moves_what_wins_and_leaves_the_rest_on_stable_for_good(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run(6)
    world.command("start", plan=plan_on(matrix_evidence(), speculate="where_it_wins"))
    world.run(2)
    world.command("promote", full=True)
    world.run(2)
    status = world.controller.status()
    assert status["rollout"]["state"] == "promoted"
    assert (status["stable"], status["split"]["stable"]) == ("baseline", "baseline")
    assert (status["split"]["canary"], status["split"]["canary_percent"]) == ("speculative", 100.0)
    assert world.fleet[0].split.eligible.cells == (WinningCell(SamplingMode.GREEDY, 0, 4, 3),)
    world.command("start", plan=plan_on(matrix_evidence()))
    assert world.rollout["id"] == "speculative-2"


def test_evidence_that_wins_only_in_part_is_told_when_everything_is_to_move() -> None:
    part = matrix_evidence(decision="inconclusive", recommendation="Use it only where it pays.")
    assert "evidence: Use it only where it pays." in cautions(read_plan(plan_on(part)))
    assert not [line for line in cautions(read_plan(plan_on(matrix_evidence()))) if line.startswith("evidence")]


def test_evidence_that_keeps_every_cell_but_loses_for_some_lengths_says_so_when_a_rollout_starts(
    tmp_path: Path,
) -> None:
    losing = ("(prompt ≤1024, output ≤32) in greedy at 1 open",)
    plan = plan_on(matrix_evidence(losing=losing))
    (told,) = [line for line in cautions(read_plan(plan)) if line.startswith("evidence")]
    assert told.startswith(f"evidence: in cells that it keeps it loses for {losing[0]}: restrict the plan")
    world = World(tmp_path)
    world.run(6)
    assert told in world.command("start", plan=plan)["warnings"]

from __future__ import annotations

import asyncio
import json
from typing import get_type_hints

import pytest
from prometheus_client.parser import text_string_to_metric_families

from canary import inbox
from canary.controller import Controller
from canary.explain import STORIES
from canary.journal import JournalTaken
from canary.plan import PathFacts
from canary.status import (
    FleetStatus,
    Outlook,
    PathStatus,
    ReplicaStatus,
    RolloutStatus,
    RouterStatus,
    StepNeed,
    VerdictStatus,
)
from fleet.errors import BadRequest, Conflict, NotFound, Unavailable
from fleet.metrics import GUARDRAILS
from fleet.traffic import HardTrip, HardTripKind, PathTally, RouterReport
from tests.canary.world import Behaviour, World, plan, replica


@pytest.fixture
def world(tmp_path):
    found = World(tmp_path)
    yield found
    found.controller.close()


def started(world: World, **changes) -> World:
    world.run(2)
    world.command("start", plan=plan(**changes))
    return world


def served(world: World) -> dict[str, float]:
    """Requests by path, by the scrape."""
    found: dict[str, float] = {}
    lines = world.controller.metrics().decode().splitlines()
    of_requests = "\n".join(line for line in lines if "fleet_requests_total" in line)  # to parse all takes 40 ms
    for family in text_string_to_metric_families(of_requests):
        for sample in family.samples:
            path = sample.labels["path"]
            found[path] = found.get(path, 0) + sample.value
    return found


def test_the_status_has_exactly_the_published_schema(world):
    started(world).run(20)
    status = json.loads(json.dumps(world.controller.status()))
    assert set(status) == set(get_type_hints(FleetStatus))
    assert all(set(path) == set(get_type_hints(PathStatus)) for path in status["paths"])
    assert all(set(router) == set(get_type_hints(RouterStatus)) for router in status["routers"])
    assert set(status["rollout"]) == set(get_type_hints(RolloutStatus))
    assert all(set(item) == set(get_type_hints(VerdictStatus)) for item in status["rollout"]["verdicts"])
    assert set(status["paths"][1]["replicas"][0]) == set(get_type_hints(ReplicaStatus))


def test_the_status_shows_what_each_path_does(world):
    world.behaviours["baseline"] = Behaviour(tokens=10)
    started(world).run(20)
    baseline, speculative = world.controller.status()["paths"]
    assert (baseline["role"], speculative["role"]) == ("stable", "canary")
    assert (speculative["replicas_ready"], speculative["replicas_wanted"]) == (1, 1)
    assert baseline["tokens_per_second"] == pytest.approx(0.95 * 8 * 10, rel=0.15)
    assert baseline["acceptance"] is None
    assert speculative["acceptance"] == pytest.approx(0.7, abs=0.15)


def test_the_outlook_of_a_plan_knows_the_present_rate_of_requests(world):
    world.run(20)
    told = world.command("lint", plan=plan())["outlook"]
    assert told["requests_per_second"] == pytest.approx(8, rel=0.1)
    assert set(told) == set(get_type_hints(Outlook))
    assert set(told["steps"][0]) == set(get_type_hints(StepNeed))
    assert "outlook" not in world.command("lint", plan=plan(canary="turbo"))
    assert world.command("start", plan=plan())["outlook"]["steps"] == told["steps"]


def test_a_path_that_stopped_drafting_says_so_with_its_figures(world):
    world.run(2)
    tally = PathTally(rounds=10, drafted=10, accepted=1, empty_rounds=190)
    for number in range(1, 4):
        world.clock.advance(1.0)
        world.controller.report(RouterReport("r", number, 1, {}, {"speculative": tally}))
        world.controller.replica_report(replica("speculative", "s", draft_tokens=4, may_pause_drafting=True))
        world.controller.tick()
    speculative = world.controller.status()["paths"][1]
    assert speculative["drafting_note"] == (
        "drafting paused: measured not to pay (acceptance 10 %, mean draft length 0.1 of 4)"
    )
    assert speculative["draft_length"] == pytest.approx(0.05)
    assert f"canary: {speculative['drafting_note']}" in world.command("lint", plan=plan())["warnings"]


def test_the_realised_weight_is_what_the_routers_did(world):
    started(world, steps=[{"weight": 30, "bake": "60s"}, {"weight": 100}]).run(50)
    realised = world.rollout["weight_realised"]
    assert realised == pytest.approx(30, abs=7)


def test_every_report_counts_exactly_once_however_often_it_is_sent(world):
    tally = PathTally(assigned=3, outcomes={"done": 3})
    report = RouterReport("r", 1, 1, {}, {"baseline": tally})
    for _ in range(3):
        world.clock.advance(0.05)
        world.controller.report(report)
        world.controller.tick()
    world.restart()
    world.controller.report(report)
    world.controller.tick()
    assert served(world) == {"baseline": 3, "speculative": 0}


def test_routers_that_come_and_go_leave_bounded_memory_and_every_count(world, monkeypatch):
    monkeypatch.setattr(inbox, "REMEMBERED", 20)
    tally = PathTally(assigned=1, outcomes={"done": 1})
    counts = []
    for number in range(60):
        world.clock.advance(1)
        world.controller.report(RouterReport(f"r{number}", 1, 1, {}, {"baseline": tally}))
        world.controller.report(RouterReport(f"r{max(0, number - 15)}", 1, 1, {}, {"baseline": tally}))
        if number % 20 == 19:
            world.restart()
        world.controller.tick()
        counts.append(served(world)["baseline"])
        assert len(world.controller._desk.memory.sequences) <= 40
    assert counts == list(range(1, 61))


def test_a_report_is_acknowledged_only_when_it_is_on_disk(world, monkeypatch):
    monkeypatch.setattr(world.controller._journal, "commit", refuse)
    world.clock.advance(1)
    report = RouterReport("r", 1, 1, {}, {"baseline": PathTally(assigned=3, outcomes={"done": 3})})
    with pytest.raises(Unavailable):
        world.controller.report(report)
    assert world.controller._inbox.acknowledged("r") == 0
    monkeypatch.undo()
    assert world.controller.report(report).acknowledged == 1
    assert served(world)["baseline"] == 3


def refuse(*_: object) -> None:
    raise Unavailable("the journal cannot be written: disk full")


def test_no_decision_is_seen_before_it_is_on_disk(world, monkeypatch):
    started(world).run(4)
    before = world.controller.status()["split"]
    monkeypatch.setattr(world.controller._journal, "commit", refuse)
    with pytest.raises(Unavailable):
        world.command("abort", reason="now")
    assert world.controller.status()["split"] == before
    monkeypatch.undo()
    world.controller.tick()
    assert world.controller.status()["split"]["canary"] is None
    assert world.rollout["state"] == "aborted"


def test_a_hard_trip_is_in_the_very_reply(world):
    started(world).run(4)
    trip = HardTrip("speculative", HardTripKind.OOM, "no memory")
    before = world.controller.status()["split"]["version"]
    reply = world.controller.report(RouterReport("new", 1, before, {}, {}, (trip,)))
    assert (reply.split.canary, reply.acknowledged) == (None, 1)
    assert reply.split.version > before


def test_a_replica_that_says_it_ran_out_of_memory_trips_at_once(world):
    started(world).run(4)
    world.controller.replica_report(replica("speculative", "speculative-0-0", out_of_memory=1))
    assert world.rollout["reason"] == "oom: replica speculative-0-0 could not allocate memory"
    assert world.controller.status()["split"]["canary"] is None


def test_split_versions_only_grow_across_restarts(world):
    versions = []
    started(world)
    for seconds in (5, 5, 60):
        world.run(seconds)
        versions.append(world.controller.status()["split"]["version"])
        world.restart()
        versions.append(world.controller.status()["split"]["version"])
    assert versions == sorted(versions)
    world.command("promote", full=True)
    assert world.controller.status()["split"]["version"] > versions[-1]


def test_counters_never_run_backwards_across_restarts(world):
    started(world)
    counts = []
    for _ in range(4):
        world.run(3)
        counts.append(sum(served(world).values()))
        world.restart()
        counts.append(sum(served(world).values()))
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def test_what_happened_on_the_way_to_drafts_outlives_controller_and_replica(world):
    started(world)
    for replica_id, late in (("a", 1), ("a", 4), ("b", 0), ("b", 2)):
        world.controller.replica_report(replica("speculative", replica_id, draft_link={"late": late}))
    world.run(1)
    world.restart()
    line = 'fleet_draft_link_total{engine="0",event="late",model_name="tiny",path="speculative"} 5.0'
    assert line in world.controller.metrics().decode()


def test_after_a_restart_the_canary_is_given_time_to_report_itself(world):
    started(world).run(10)
    world.restart()
    world.clock.advance(2)
    world.controller.tick()
    assert world.rollout["weight_set"] == 5
    world.clock.advance(6)
    world.controller.tick()
    assert (world.rollout["state"], world.rollout["weight_set"]) == ("holding", 0)


def test_the_time_in_which_no_controller_ran_is_no_bake(world):
    started(world).run(10)
    before = world.rollout["bake_elapsed_seconds"]
    world.controller.close()
    world.clock.advance(3600)
    world.controller = world.open()
    assert world.rollout["bake_elapsed_seconds"] == before


def test_a_rollout_whose_path_left_the_config_is_aborted(world):
    started(world).run(5)
    world.controller.close()
    world.paths = {"baseline": PathFacts(1, False)}
    world.controller = world.open()
    assert (world.rollout["state"], world.rollout["reason"]) == (
        "aborted",
        "by the controller: path 'speculative' is no longer configured",
    )
    assert world.controller.status()["split"]["canary"] is None


def test_the_promoted_path_stays_stable_after_a_restart_and_falls_back_when_it_is_gone(world):
    started(world)
    world.command("promote", full=True)
    world.restart()
    assert world.controller.status()["stable"] == "speculative"
    assert world.controller.status()["split"]["stable"] == "speculative"
    world.controller.close()
    world.paths = {"baseline": PathFacts(1, False)}
    world.controller = world.open()
    assert world.controller.status()["split"]["stable"] == "baseline"


def test_one_salt_a_rollout_so_that_a_higher_weight_moves_nobody_back(world):
    started(world, eligible={"max_prompt_tokens": 100})
    reply = world.fleet[0].exchange(world.controller)
    first = world.controller.report(RouterReport("x", 1, 0, {}, {})).split
    world.command("promote")
    second = world.controller.report(RouterReport("x", 2, 0, {}, {})).split
    assert (first.salt, second.salt) == ("speculative-1", "speculative-1")
    assert (first.canary_percent, second.canary_percent) == (5, 50)
    assert second.eligible.max_prompt_tokens == 100
    assert reply.split.stable == "baseline"


def test_lint_and_dry_run_start_nothing(world):
    assert world.command("lint", plan=plan())["errors"] == []
    assert world.command("lint", plan=plan(canary="x"))["errors"] != []
    assert world.command("start", plan=plan(), dry_run=True)["message"] == "the plan can be started"
    assert world.controller.status()["rollout"] is None


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("fly", {}, NotFound),
        ("start", {}, BadRequest),
        ("start", {"plan": {"stable": "baseline"}}, BadRequest),
        ("start", {"plan": plan(), "dry_run": "yes"}, BadRequest),
        ("pause", {}, NotFound),
        ("history", {}, NotFound),
        ("history", {"rollout": "none-7"}, NotFound),
    ],
)
def test_unusable_commands_are_refused_as_the_callers_mistake(world, name, arguments, error):
    with pytest.raises(error):
        world.controller.command(name, arguments)


def test_history_wants_a_sensible_limit(world):
    started(world)
    with pytest.raises(BadRequest, match="limit must be a whole number"):
        world.command("history", limit=0)


def test_a_rollout_can_be_retried_only_while_the_fleet_still_fits_it(world):
    started(world)
    world.command("abort", reason="")
    world.controller.close()
    world.paths = {"baseline": PathFacts(1, False)}
    world.controller = world.open()
    with pytest.raises(Conflict, match="no path 'speculative'"):
        world.command("retry")


@pytest.mark.parametrize("missed_for", [8, 2], ids=["missed", "not missed yet"])
def test_a_kill_of_which_the_next_attempt_hears_was_the_last_attempts(world, missed_for):
    """The replica's machine is silent until somebody comes in its place, and that is after the retry."""
    started(world)
    del world.replicas["speculative"]
    world.controller.replica_report(replica("speculative", "a", oom_scope="host"))
    world.run(missed_for)
    world.command("abort", reason="a replica went")
    world.command("retry")
    world.run(8)
    world.controller.replica_report(replica("speculative", "b", oom_scope="host", oom_kills=1))
    world.controller.tick()
    assert world.rollout["attempt"] == 2
    assert world.rollout["state"] in ("preparing", "baking"), world.rollout["reason"]


def test_list_names_every_rollout_and_how_it_ended(world):
    started(world).run(5)
    world.command("abort", reason="enough", by="ann")
    world.replicas["speculative"] = 0
    world.run(8)
    (ended,) = world.command("list")["rollouts"]
    assert ended["reason"] == "aborted (by ann: enough); weight 5 % -> 0 %", "whatever replicas did afterwards"
    world.command("start", plan=plan())
    first, second = world.command("list")["rollouts"]
    assert (first["id"], first["state"], first["reason"]) == ("speculative-1", "aborted", ended["reason"])
    assert first["ended_at"] is not None
    assert (second["id"], second["ended_at"]) == ("speculative-2", None)


def test_a_rollback_is_counted_by_the_guardrail_that_caused_it(world):
    started(world).run(4)
    world.controller.replica_report(replica("speculative", "speculative-0-0", out_of_memory=1))
    text = world.controller.metrics().decode()
    assert 'fleet_guardrail_trips_total{guardrail="oom"} 1.0' in text
    assert 'fleet_rollout_state{state="rolled_back"} 1.0' in text


def test_every_guardrail_that_can_take_a_canary_back_has_its_counter():
    assert {*GUARDRAILS, "realised_split"} == set(STORIES)


CALIBRATION = {"tried": [{"window_seconds": 2.0, "runs": 400, "rollbacks": 60, "lower": 0.12, "upper": 0.18}]}


def test_a_plan_that_takes_back_equal_canaries_must_not_act_by_itself(world):
    started(world)
    world.command("abort", reason="recorded enough")
    kept = world.command("calibrated", plan=plan(), chosen_seconds=8.0, **CALIBRATION)
    assert kept["message"] == "kept: `start` heeds what A/A rollouts of 'speculative-1' showed"
    world.restart()
    refusal = r"60 of 400 A/A rollouts of 'speculative-1' .* more than alpha 5.0%: set window: 8s, or start it with --m"
    with pytest.raises(BadRequest, match=refusal):
        world.command("start", plan=plan())
    with pytest.raises(Conflict, match=refusal):
        world.command("retry")
    assert any("set window: 8s" in error for error in world.command("lint", plan=plan())["errors"])
    assert world.command("lint", plan=plan(mode="manual"))["errors"] == []
    longer = plan(window="8s", on_no_data={"hold": "20s"})
    assert not any("A/A" in warning for warning in world.command("lint", plan=longer)["warnings"])
    world.command("start", plan=plan(mode="manual"))
    assert world.rollout["id"] == "speculative-2"


def test_a_plan_of_which_nothing_is_known_may_act_and_that_is_said(world):
    world.run(2)
    told = world.command("start", plan=plan())["warnings"]
    assert any(warning.startswith("no A/A calibration yet: `fleet canary aa`") for warning in told)


@pytest.mark.parametrize("broken", [{}, {"tried": 3}, {"tried": [{"runs": 1}]}])
def test_what_is_no_calibration_is_refused(world, broken):
    started(world)
    with pytest.raises(BadRequest, match="no calibration"):
        world.command("calibrated", plan=plan(), **broken)


async def test_the_tick_outlives_a_full_disk_and_ends_when_it_is_replaced(world, monkeypatch):
    sleeps = 0

    async def no_sleep(_: float) -> None:
        nonlocal sleeps
        sleeps += 1
        if sleeps == 2:
            monkeypatch.undo()
            monkeypatch.setattr(asyncio, "sleep", no_sleep)
            successor.append(world.open())
            world.controller._desk.touch(["counters"])

    successor: list[Controller] = []
    monkeypatch.setattr(asyncio, "sleep", no_sleep)
    monkeypatch.setattr(world.controller._journal, "commit", refuse)
    world.controller._desk.touch(["counters"])
    with pytest.RaisesGroup(JournalTaken):
        await world.controller.run()
    assert "fleet_journal_failures_total 2.0" in world.controller.metrics().decode()
    successor[0].close()

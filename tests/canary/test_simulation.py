from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from canary import event_json
from canary.events import Ticked
from canary.record import Recorded, read_record
from canary.simulation import simulate
from fleet.errors import ConfigError
from tests.canary.events_strategy import histories, starts
from tests.canary.test_journal import entries_of
from tests.canary.world import World, plan


def exported(world: World, folder: Path) -> Path:
    """What `fleet canary export` writes, page by page."""
    file, after = folder / "record.jsonl", 0
    with file.open("w") as out:
        while page := world.command("export", after=after, limit=7)["record"]:
            out.writelines(json.dumps(event) + "\n" for event in page)
            after = page[-1]["id"]
    return file


@pytest.fixture(scope="module")
def slowed(tmp_path_factory) -> list[Recorded]:
    """A rollout with a pause, a restart and a retry, whose canary becomes a little slow, with a limit of 30 %."""
    folder = tmp_path_factory.mktemp("slowed")
    world = World(folder, requests_per_second=20)
    world.run(2)
    limits = {"itl_p95": {"max_increase": "30%"}, "error_rate": {"max_increase": "0.5pp"}}
    steps = [{"weight": 20, "bake": "40s"}, {"weight": 50, "bake": "40s"}, {"weight": 100}]
    world.command("start", plan=plan(guardrails=limits, steps=steps, last_step="no_harm"))
    world.run(6)
    world.command("abort", reason="by mistake")
    world.command("retry")
    world.behaviours["speculative"].itl_seconds = 0.036
    world.run(9)
    world.command("pause")
    world.run(4)
    world.restart()
    world.command("resume")
    world.run_until("promoted")
    record = read_record(exported(world, folder))
    world.controller.close()
    return record


def test_the_same_plan_gives_the_same_decisions(slowed):
    found = simulate(slowed)
    assert found.parted is None
    assert found.simulated == found.recorded
    assert {turn.state for turn in found.recorded} >= {"baking", "aborted", "paused", "promoted"}
    assert simulate(slowed, slowed[0].event.plan) == found
    assert found.answers == found.recorded_answers


def test_what_would_a_tighter_limit_have_done(slowed):
    tighter = plan(**slowed[0].event.plan) | {"guardrails": {"itl_p95": {"max_increase": "5%"}}}
    found = simulate(slowed, tighter)
    end = found.simulated[-1]
    assert (end.state, end.weight) == ("rolled_back", 0)
    assert end.told.startswith("window of")
    assert "p95 time per token rose by more than 5 %" in end.told
    assert found.parted == end.seconds < found.seconds
    tripped = found.answers[0]
    assert (tripped.guardrail, tripped.level) == ("itl_p95", "fail")
    assert tripped.closest is not None
    assert tripped.closest.e_value >= tripped.closest.threshold
    assert tripped.closest.seconds == end.seconds
    recorded = {answer.guardrail: answer for answer in found.recorded_answers}
    assert recorded["itl_p95"].level == "pass"
    assert recorded["itl_p95"].closest is not None
    assert recorded["itl_p95"].closest.e_value < recorded["itl_p95"].closest.threshold
    assert "error_rate" not in {answer.guardrail for answer in found.answers}
    before = [turn for turn in found.recorded if turn.seconds < found.parted]
    assert list(found.simulated[:-1]) == before


def test_what_would_a_shorter_bake_have_done(slowed):
    steps = [{"weight": 20, "bake": "14s"}, {"weight": 50, "bake": "14s"}, {"weight": 100}]
    found = simulate(slowed, dict(slowed[0].event.plan) | {"steps": steps})
    assert found.simulated[-1].state == "promoted"
    assert found.simulated[-1].seconds < found.recorded[-1].seconds - 30


def test_a_looser_limit_finds_no_traffic_where_the_record_has_none(tmp_path):
    world = World(tmp_path)
    world.run(2)
    world.command("start", plan=plan())
    world.behaviours["speculative"].itl_seconds = 0.08
    world.run_until("rolled_back")
    record = read_record(exported(world, tmp_path))
    world.controller.close()
    found = simulate(record, plan(guardrails={"error_rate": {"max_increase": "5pp"}}))
    assert found.recorded[-1].state == "rolled_back"
    assert found.simulated[-1].state == "baking"
    assert found.parted == found.recorded[-1].seconds


def test_a_command_that_no_longer_fits_is_left_out_and_told(slowed):
    tripped = dict(slowed[0].event.plan) | {"steps": [{"weight": 60, "bake": "40s"}, {"weight": 100}]}
    found = simulate(slowed, tripped)
    # From the first weight on it is another rollout; where the recorded one was tried again, it has ended.
    assert found.parted is not None
    assert found.simulated[-1].state == "aborted"
    assert found.left_out == ()


@pytest.mark.parametrize(
    "change", [{"stable": "other"}, {"canary": "other"}, {"window": "4s"}, {"eligible": {"max_prompt_tokens": 9}}]
)
def test_a_record_does_not_answer_for_traffic_it_never_saw(slowed, change):
    with pytest.raises(ConfigError, match=f"{next(iter(change))}: must be as recorded"):
        simulate(slowed, dict(slowed[0].event.plan) | change)


@settings(max_examples=40, deadline=None)
@given(starts, histories)
def test_any_order_of_events_is_judged_again_as_it_was(start, history):
    record = [
        Recorded(
            entry.event, entry.after.id, entry.after.attempt, entry.after.state.value, entry.after.weight, entry.summary
        )
        for entry in entries_of(start, list(ticked(history)))
    ]
    found = simulate(record)
    assert found.parted is None
    assert [turn.state for turn in found.simulated] == [turn.state for turn in found.recorded]


def ticked(history):
    """As a controller would have it: what was not an operator's doing ends with a tick at the same moment."""
    for pause, event in history:
        yield pause, event
        if not type(event).__name__.startswith("Operator"):
            yield 0.0, Ticked(0.0)


def test_what_is_no_export_is_refused_by_file_and_line(tmp_path, slowed):
    body = json.loads(event_json.written(slowed[0].event))
    line = {"rollout": "r-1", "attempt": 1, "event": "RolloutStarted", "state": "preparing", "weight": 0}
    good = json.dumps(line | {"summary": "", "body": body})
    file = tmp_path / "x.jsonl"
    for text, complaint in (
        (good + "\nnot json", r"x.jsonl:2: not a line of `fleet canary export`"),
        (good.replace("RolloutStarted", "Exploded"), "x.jsonl:1: unknown event 'Exploded'"),
        (good.replace('"at"', '"when"'), "x.jsonl:1: not a line of .*at: Field required"),
        ("", "holds no rollout '.*it holds: nothing"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=complaint):
            read_record(file)
    file.write_text(good)
    assert read_record(file)[0].event == slowed[0].event
    with pytest.raises(ConfigError, match="holds no rollout 'r-2'; it holds: r-1"):
        read_record(file, "r-2")
    with pytest.raises(ConfigError, match="cannot read"):
        read_record(tmp_path / "none.jsonl")

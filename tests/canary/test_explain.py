from __future__ import annotations

import json
from typing import get_type_hints

import pytest

from canary.events import CapacityChanged, OperatorPromoted, RolloutStarted, SplitApplied, WindowClosed
from canary.explain import STORIES, explain
from canary.limits import Guardrails
from canary.rollout import advance
from canary.rollout_state import Rollout, begin, verdicts_of
from canary.status import Explanation, ReadingStatus
from deploy.bench.judge_runs import LIMITS
from fleet.errors import NotFound
from tests.canary.events_strategy import tally, window
from tests.canary.world import World, plan

ALL = LIMITS | {"acceptance": {"max_decrease": "10%", "reference": "calibrate"}}


def test_every_guardrail_there_is_can_be_planned_judged_and_explained():
    rollout = begin(RolloutStarted(0.0, "speculative-1", plan(guardrails=ALL)))
    names = {verdict.guardrail for verdict in verdicts_of(rollout)}
    assert names == {*Guardrails.model_fields, "signal"} == set(STORIES)
    for name in names:
        found = explain(rollout, name)
        assert found["verdict"]["guardrail"] == name
        assert found["asks"].endswith("?")
        assert (found["error_chance"] is None) == (found["verdict"]["threshold"] is None)


def test_a_name_that_is_not_judged_is_refused_with_the_nearest():
    rollout = begin(RolloutStarted(0.0, "speculative-1", plan()))
    with pytest.raises(NotFound, match=r"has no guardrail 'itl_p59'; did you mean itl_p95\?"):
        explain(rollout, "itl_p59")
    with pytest.raises(NotFound, match="there are: oom, crash_loop, signal, itl_p95"):
        explain(rollout, "")


def test_the_controller_explains_with_the_published_schema(tmp_path):
    world = World(tmp_path)
    try:
        with pytest.raises(NotFound, match="there is no rollout to explain"):
            world.command("explain", guardrail="itl_p95")
        world.run(2)
        world.command("start", plan=plan(guardrails=ALL))
        world.run(30)
        found = json.loads(json.dumps(world.command("explain", guardrail="itl_p95")))["explanation"]
        assert set(found) == set(get_type_hints(Explanation))
        assert set(found["readings"][0]) == set(get_type_hints(ReadingStatus))
        assert found["error_chance"] == pytest.approx(0.05 / len(ALL))
        assert found["verdict"]["threshold"] == pytest.approx(len(ALL) / 0.05)
        assert found["readings"][0]["samples"] > 0
    finally:
        world.controller.close()


def promoted(requests: int, **changes) -> Rollout:
    """Compared over four windows with so many requests of each path, and then promoted by an operator."""
    rollout = begin(RolloutStarted(0.0, "speculative-1", plan(**changes)))
    seen = window(tally(requests), tally(requests), percent=5.0)
    for event in (
        CapacityChanged(0.0, 1, 1),
        SplitApplied(1.0, 2, 1, 0.1),
        *(WindowClosed(2.0 * number, seen) for number in range(1, 7)),
        OperatorPromoted(20.0, full=True),
        WindowClosed(22.0, window(tally(9 * requests), tally(0), percent=100.0)),
    ):
        rollout, _ = advance(rollout, event)
    return rollout


def test_after_promotion_the_last_comparison_is_explained():
    found = explain(promoted(60), "itl_p95")
    assert found["state"] == "promoted"
    assert found["verdict"]["estimate"] == pytest.approx(0.0, abs=0.02)
    assert found["verdict"]["interval"] is not None
    assert None not in found["verdict"]["interval"]
    assert found["note"] == "as it was when the rollout was promoted: nothing is compared any more"


def test_an_interval_that_few_requests_do_not_give_is_told_with_the_number_that_would():
    found = explain(promoted(5), "itl_p95")
    assert found["verdict"]["interval"] is None
    assert found["note"].startswith("20 (stable p95) and 20 (canary p95) samples bound it on neither side; ")
    assert "of each path do; as it was when" in found["note"]


def test_with_a_holdback_evidence_goes_on_and_is_promised_the_same_chance():
    note = "numbers and evidence are of the whole attempt; what the steps showed stands as it was at promotion"
    assert explain(promoted(60, holdback=10), "itl_p95")["note"] == note
    assert explain(promoted(60, holdback=10), "oom")["note"] == ""
    before, after = explain(promoted(60), "itl_p95"), explain(promoted(60, holdback=10), "itl_p95")
    for name in ("error_chance", "innocent"):
        assert before[name] == after[name]
    assert before["verdict"]["threshold"] == after["verdict"]["threshold"]


def test_the_chance_is_told_of_whom_it_is_promised_to():
    rollout = begin(RolloutStarted(0.0, "speculative-1", plan(guardrails=ALL)))
    assert explain(rollout, "itl_p95")["innocent"] == "a canary that keeps its limit in every window"
    assert "what was learned included" in explain(rollout, "acceptance")["innocent"]
    assert "routers" in explain(rollout, "realised_split")["innocent"]

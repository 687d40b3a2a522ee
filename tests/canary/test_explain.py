from __future__ import annotations

import json
from typing import get_type_hints

import pytest

from canary.events import RolloutStarted
from canary.explain import STORIES, explain
from canary.limits import Guardrails
from canary.rollout_state import begin, verdicts_of
from canary.status import Explanation, ReadingStatus
from deploy.bench.judge_runs import LIMITS
from fleet.errors import NotFound
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

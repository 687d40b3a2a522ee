from __future__ import annotations

import pytest

from canary.guardrails import Evidence, observe
from canary.plan import read_plan
from canary.verdict import Level
from fleet.traffic import PathTally
from tests.canary.judging.rails import level, verdict, window
from tests.canary.world import plan

LIMIT = {"max_increase": "2pp"}


def left(cancelled: int, done: int) -> PathTally:
    return PathTally(outcomes={"done": done, "cancelled": cancelled})


def test_clients_that_leave_the_canary_more_often_fail_it():
    assert level("cancel_rate", LIMIT, [window(left(1, 19), left(8, 152))] * 40) == Level.PASS
    found = verdict("cancel_rate", LIMIT, [window(left(6, 14), left(8, 152))] * 20)
    assert found.level == Level.FAIL
    assert found.estimate == pytest.approx(0.25)
    assert found.reason.startswith("clients leave more often by more than 2 pp: canary 120 of 400")


def test_clients_that_leave_are_no_errors():
    assert level("error_rate", LIMIT, [window(left(6, 14), left(8, 152))] * 20) == Level.PASS


def test_who_leaves_a_cold_canary_is_not_held_against_it_and_who_fails_is():
    chosen = read_plan(plan(guardrails={"error_rate": LIMIT, "cancel_rate": LIMIT}, warmup_windows=3))
    evidence = Evidence.start(chosen).reweighted(chosen)
    bad = PathTally(outcomes={"cancelled": 5, "failed": 5})
    for _ in range(4):
        evidence = observe(evidence, chosen, window(bad, left(0, 40)), is_promoted=False)
    errors, cancels, _ = evidence.rails
    assert (errors.canary.trials, cancels.canary.trials) == (40, 0)

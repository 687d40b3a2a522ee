from __future__ import annotations

import pytest

from canary.verdict import Level
from canary.windows import ArmUsage
from fleet.traffic import PathTally
from tests.canary.judging.rails import level, verdict, window

LIMIT = {"max_increase": "5pp"}


def stalled(share: float, streams: int = 10) -> PathTally:
    tally = PathTally(outcomes={"done": streams})
    tally.stall.add(1.0 + share, streams)
    return tally


def test_readers_who_wait_longer_than_stables_fail_the_canary():
    assert level("stall", LIMIT, [window(stalled(0.05), stalled(0.02))] * 60) == Level.PASS
    found = verdict("stall", LIMIT, [window(stalled(0.20), stalled(0.02))] * 60)
    assert (found.level, found.unit) == (Level.FAIL, "points")
    assert found.estimate == pytest.approx(0.18, abs=0.001)
    assert "canary 20.0%, stable 2.0%" in found.reason


def test_readers_who_always_wait_can_still_be_made_to_wait_longer():
    assert level("stall", LIMIT, [window(stalled(0.36), stalled(0.36))] * 60) == Level.PASS
    assert level("stall", LIMIT, [window(stalled(0.60), stalled(0.36))] * 60) == Level.FAIL


def ending(ended: int) -> PathTally:
    return PathTally(outcomes={"done": ended})


def still_open(canary: int, stable: int) -> tuple[ArmUsage, ArmUsage]:
    return ArmUsage(open_requests=canary), ArmUsage(open_requests=stable)


def test_requests_that_never_end_are_a_lag_and_open_ones_on_both_paths_are_not():
    fine = window(ending(8), ending(80), usage=still_open(2, 20))
    stuck = window(ending(4), ending(80), usage=still_open(6, 20))
    assert level("completion_lag", LIMIT, [fine] * 60) == Level.PASS
    found = verdict("completion_lag", LIMIT, [stuck] * 60)
    assert found.level == Level.FAIL
    assert found.estimate == pytest.approx(0.4)


def pressed(canary: int, stable: int) -> tuple[ArmUsage, ArmUsage]:
    return ArmUsage(looks=10, samples=10, pressed=canary), ArmUsage(looks=10, samples=20, pressed=stable)


def test_a_draft_that_takes_the_cache_away_shows_as_pressure():
    assert level("kv_pressure", LIMIT, [window(usage=pressed(5, 10))] * 60) == Level.PASS
    found = verdict("kv_pressure", LIMIT, [window(usage=pressed(8, 2))] * 60)
    assert found.level == Level.FAIL
    assert found.estimate == pytest.approx(0.7)


def test_an_arm_with_nothing_to_show_is_no_bet():
    found = verdict("stall", LIMIT, [window(PathTally(), stalled(0.1))] * 9)
    assert (found.level, found.samples) == (Level.INSUFFICIENT, 0)
    assert found.proof is not None
    assert found.proof.e_value == pytest.approx(1.0)

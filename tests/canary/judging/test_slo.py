from __future__ import annotations

from dataclasses import replace

import pytest

from canary.verdict import Level
from fleet.traffic import PathTally
from tests.canary.judging.rails import STAGE, level, verdict, window

LIMIT = {"max": "250ms"}


def gaps(long: int, *, seconds: float = 0.4, short: int = 95) -> PathTally:
    tally = PathTally(outcomes={"done": 5})
    tally.gap.add(0.04, short)
    tally.gap.add(seconds, long)
    return tally


def test_long_gaps_break_the_limit_whatever_they_are_compared_with():
    found = verdict("gap_p99", LIMIT, [window(gaps(5), gaps(0))] * 30)
    assert (found.level, found.unit, found.limit) == (Level.FAIL, "seconds", 0.25)
    assert found.estimate == pytest.approx(0.4, rel=0.02)
    assert "more than 1 % of gaps last over 250 ms" in found.reason
    assert level("gap_p99", LIMIT, [window(gaps(5), percent=100.0)] * 30) == Level.FAIL


def test_a_longer_step_within_the_limit_is_nobodys_business():
    assert level("gap_p99", LIMIT, [window(gaps(90, seconds=0.2, short=5), gaps(0))] * 60) == Level.PASS


def test_a_machine_that_slows_both_paths_takes_nobody_back():
    assert level("gap_p99", LIMIT, [window(gaps(5), gaps(5))] * 200) == Level.PASS


def test_silence_that_still_lasts_is_a_gap():
    hung = gaps(0)
    hung.silence.add(3.0, 8)
    assert level("gap_p99", LIMIT, [window(hung, gaps(0))] * 30) == Level.FAIL


def test_a_canary_without_a_gap_has_shown_nothing():
    found = verdict("gap_p99", LIMIT, [window(PathTally(), gaps(0))] * 9, replace(STAGE, windows_needed=2))
    assert (found.level, found.reason) == (Level.INSUFFICIENT, "0 of 2 windows; no gap seen yet")

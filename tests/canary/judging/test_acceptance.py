from __future__ import annotations

import pytest

from canary.verdict import Level
from fleet.histogram import LogHistogram
from fleet.traffic import PathTally
from tests.canary.judging.rails import verdict, window

LIMIT = {"max_decrease": "10%", "reference": "calibrate"}


def mixed(**acceptance: tuple[float, int]) -> PathTally:
    """(acceptance, requests) by stratum, which is written greedy_short."""
    tally = PathTally()
    for name, (value, count) in acceptance.items():
        tally.request_acceptance.add(1.0 + value, count)
        histogram = tally.acceptance_by.setdefault(name.replace("_", "/"), LogHistogram())
        histogram.add(1.0 + value, count)
    return tally


def test_a_shift_in_the_mix_is_no_drop():
    before = window(mixed(greedy_short=(0.8, 9), sampled_short=(0.4, 1)))
    after = window(mixed(greedy_short=(0.8, 1), sampled_short=(0.4, 9)))
    found = verdict("acceptance", LIMIT, [before] * 60 + [after] * 60)
    assert found.level == Level.PASS
    assert {reading.name: reading.limit for reading in found.readings} == pytest.approx(
        {"greedy/short": 0.72, "sampled/short": 0.36}
    )
    pooled = verdict("acceptance", {**LIMIT, "strata": []}, [before] * 60 + [after] * 60)
    assert pooled.level == Level.FAIL, "what the strata are for"


def test_a_drop_in_one_kind_of_request_is_found_and_named():
    good = window(mixed(greedy_short=(0.8, 5), sampled_long=(0.6, 5)))
    bad = window(mixed(greedy_short=(0.8, 5), sampled_long=(0.3, 5)))
    found = verdict("acceptance", LIMIT, [good] * 20 + [bad] * 40)
    assert found.level == Level.FAIL
    assert "most in sampled/long" in found.reason


def test_strata_are_merged_as_far_as_the_plan_says():
    items = [window(mixed(greedy_short=(0.8, 5), greedy_long=(0.6, 5), sampled_long=(0.5, 5)))] * 20
    found = verdict("acceptance", {**LIMIT, "strata": ["sampling"]}, items)
    assert [reading.name for reading in found.readings] == ["greedy", "sampled"]
    assert found.readings[0].value == pytest.approx(0.7)
    assert verdict("acceptance", {**LIMIT, "reference": 0.5}, items).readings[0].name == "all"


def test_a_kind_that_is_still_calibrating_does_not_silence_the_others():
    good = window(mixed(greedy_short=(0.8, 5)))
    bad = window(mixed(greedy_short=(0.3, 5), sampled_short=(0.3, 1)))
    assert verdict("acceptance", LIMIT, [good] * 20 + [bad] * 20).level == Level.FAIL

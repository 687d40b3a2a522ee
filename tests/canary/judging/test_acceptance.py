from __future__ import annotations

import numpy as np
import pytest

from canary.guardrails import Evidence, budget_of, observe
from canary.plan import read_plan
from canary.verdict import Level
from canary.windows import Window
from fleet.histogram import LogHistogram
from fleet.traffic import PathTally
from tests.canary.judging.rails import verdict, window
from tests.canary.stats.streams import keeps_promise
from tests.canary.world import plan

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
    limits = {reading.name: reading.limit for reading in found.readings}
    assert limits == pytest.approx({"greedy/short": 0.72, "sampled/short": 0.36}, rel=0.05)
    assert limits["greedy/short"] <= 0.72
    assert limits["sampled/short"] <= 0.36
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


def test_it_judges_while_it_learns():
    found = verdict("acceptance", LIMIT, [window(mixed(greedy_short=(0.8, 5)))] * 12)
    assert found.level == Level.INSUFFICIENT
    assert found.reason.startswith("calibrating: 60 requests with a draft, about ")
    assert found.limit is not None
    assert 0.4 < found.limit < 0.72, "as far as it is known"
    good, useless = window(mixed(greedy_short=(0.8, 5))), window(mixed(greedy_short=(0.0, 5)))
    assert verdict("acceptance", LIMIT, [good] * 12 + [useless] * 6).level == Level.FAIL


def drafted(source: np.random.Generator, mean: float, count: int) -> Window:
    """Greedy requests around the mean, sampled ones 10 % lower, with a deviation of 0.15."""
    kinds = {}
    for sampling, level in (("greedy", mean), ("sampled", 0.9 * mean)):
        weight, histogram = level * (1.0 - level) / 0.15**2 - 1.0, LogHistogram()
        for value in source.beta(level * weight, (1.0 - level) * weight, count):
            histogram.add(1.0 + value)
        kinds[f"{sampling}/short"] = histogram
    return window(PathTally(acceptance_by=kinds))


@pytest.mark.parametrize("limit", [pytest.param("2%", marks=pytest.mark.slow), "5%"])
def test_a_canary_at_the_very_limit_of_what_it_learned_is_seldom_taken_back(limit):
    """Both kinds of requests fall to their floors as soon as their references are settled, and stay there."""
    chosen = read_plan(plan(guardrails={"acceptance": {**LIMIT, "max_decrease": limit}}, alpha=0.2))
    source, runs, trips, budget = np.random.default_rng(5), 20, 0, budget_of(chosen)
    decrease = float(limit[:-1]) / 100.0
    for _ in range(runs):
        evidence, mean = Evidence.start(chosen), 0.7
        for _ in range(70):
            evidence = observe(evidence, chosen, drafted(source, mean, 40), is_promoted=False)
            rail = evidence.rails[0]
            if rail.proof(budget).is_reached:
                trips += 1
                break
            if all(stratum.reference.is_settled for stratum in rail.strata.values()):
                mean = 0.7 * (1.0 - decrease)
    assert keeps_promise(trips, runs, 0.2)

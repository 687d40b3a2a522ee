from __future__ import annotations

import pytest

from canary.verdict import Level
from fleet.traffic import PathTally
from tests.canary.judging.rails import STAGE, level, verdict, window


def values(name: str, usual: float, rare: float, count: int = 20) -> PathTally:
    """So many values, every tenth of which is the rare one."""
    tally = PathTally(outcomes={"done": count})
    getattr(tally, name).add(usual, count - count // 10)
    getattr(tally, name).add(rare, count // 10)
    return tally


@pytest.mark.parametrize(("guardrail", "histogram"), [("itl_p95", "itl"), ("ttft_p95", "ttft"), ("tpot_p95", "tpot")])
def test_a_relative_limit_is_kept_or_broken_by_the_metric_it_names(guardrail, histogram):
    stable = values(histogram, 0.2, 0.4)
    limit = {"max_increase": "15%"}
    fine = [window(values(histogram, 0.2, 0.44), stable)] * 40
    slow = [window(values(histogram, 0.5, 0.9), stable)] * 40
    assert level(guardrail, limit, fine) == Level.PASS
    found = verdict(guardrail, limit, slow)
    assert found.level == Level.FAIL
    assert found.estimate == pytest.approx(1.25, abs=0.05)
    assert [reading.name for reading in found.readings] == ["stable p95", "canary p95"]


def test_requests_that_still_wait_for_their_first_token_count_against_the_canary():
    stable = values("ttft", 0.2, 0.4)
    hung = PathTally(assigned=5)
    hung.ttft.add(0.2, 1)
    hung.waiting.add(20.0, 5)
    found = verdict("ttft_p95", {"max_increase": "15%"}, [window(hung, stable)] * 20)
    assert found.level == Level.FAIL
    assert found.readings[1].value == pytest.approx(0.2, rel=0.02), "what is published stays what was measured"


def test_the_wait_for_a_slot_may_grow_by_so_many_milliseconds():
    stable = values("queue", 0.0, 0.002)
    limit = {"max_increase": "200ms"}
    assert level("queue_delay", limit, [window(values("queue", 0.0, 0.15), stable)] * 40) == Level.PASS
    found = verdict("queue_delay", limit, [window(values("queue", 0.1, 0.9), stable)] * 40)
    assert (found.level, found.unit) == (Level.FAIL, "seconds")
    assert found.estimate == pytest.approx(0.9, abs=0.02)


def test_growing_evidence_foretells_when_it_will_suffice():
    stable = values("itl", 0.02, 0.04)
    few = verdict("itl_p95", {"max_increase": "10%"}, [window(values("itl", 0.03, 0.06), stable)] * 12)
    assert few.level == Level.PASS
    assert few.trip_seconds is not None
    assert 0 < few.trip_seconds < 200
    none = verdict("itl_p95", {"max_increase": "10%"}, [window(stable, stable)] * 6)
    assert none.trip_seconds is None


def test_too_few_windows_are_told_with_the_time_they_take():
    found = verdict("tpot_p95", {"max_increase": "10%"}, [window(values("tpot", 1, 2), values("tpot", 1, 2))] * 3)
    assert (found.level, found.reason) == (Level.INSUFFICIENT, f"2 of {STAGE.windows_needed} windows")
    assert found.need is not None
    assert found.need.seconds == 2.0


def test_windows_without_a_baseline_leave_the_comparison_as_it_was():
    stable = values("itl", 0.02, 0.04)
    compared = [window(values("itl", 0.02, 0.04), stable)] * 20
    alone = [window(values("itl", 0.2, 0.4), percent=100.0)] * 20
    limit = {"max_increase": "10%"}
    assert verdict("itl_p95", limit, compared + alone) == verdict("itl_p95", limit, compared)

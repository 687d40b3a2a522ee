from __future__ import annotations

import math
import random
from typing import get_type_hints

import pytest
from pydantic import TypeAdapter

from canary.guardrails import Evidence, Signal, judge, observe
from canary.plan import read_plan
from canary.verdict import Level, Stage, Verdict, worst
from fleet.traffic import HardTrip, HardTripKind, PathTally
from tests.canary.events_strategy import tally, window
from tests.canary.test_explain import ALL
from tests.canary.world import Behaviour, finish, plan

STAGE = Stage(windows_needed=5, requests_needed=10, window_seconds=2.0, request_seconds=0.5)


def seen(windows, *, is_promoted: bool = False, **changes) -> tuple[Evidence, object]:
    chosen = read_plan(plan(**changes))
    evidence = Evidence.start(chosen)
    for item in windows:
        evidence = observe(evidence, chosen, item, is_promoted=is_promoted)
    return evidence, chosen


def verdict(name: str, windows, stage: Stage = STAGE, **changes) -> Verdict:
    evidence, chosen = seen(windows, **changes)
    return next(item for item in judge(evidence, chosen, stage) if item.guardrail == name)


def rail(evidence: Evidence, name: str):
    return next(item for item in evidence.rails if item.guardrail == name)


def fair(count: int, canary: Behaviour, stable: Behaviour, *, percent: float = 20.0, seed: int = 1):
    source = random.Random(seed)
    for _ in range(count):
        arms = []
        for how, requests in ((canary, 4), (stable, 12)):
            arm = PathTally(assigned=requests)
            for _ in range(requests):
                finish(arm, how, source)
            arms.append(arm)
        yield window(arms[0], arms[1], percent=percent)


def test_levels_are_ordered_and_the_worst_decides():
    assert Level.PASS < Level.INSUFFICIENT < Level.NO_DATA < Level.FAIL
    items = [Verdict(level.label, level, "", "count") for level in (Level.NO_DATA, Level.FAIL, Level.PASS)]
    decisive = worst(items)
    assert decisive is not None
    assert decisive.guardrail == "fail"
    assert worst([]) is None


def test_few_windows_are_insufficient_and_say_what_is_missing():
    found = verdict("itl_p95", fair(3, Behaviour(), Behaviour()))
    assert found.level == Level.INSUFFICIENT
    assert found.reason == "2 of 5 windows"
    assert found.need is not None
    assert found.need.seconds == 6.0


def test_an_equal_canary_passes_with_an_estimate_near_nothing():
    found = verdict("itl_p95", fair(20, Behaviour(), Behaviour()))
    assert found.level == Level.PASS
    assert found.estimate == pytest.approx(0.0, abs=0.08)
    assert found.samples == 80


def test_a_canary_slower_within_the_limit_passes_and_beyond_it_fails():
    within = verdict("itl_p95", fair(40, Behaviour(itl_seconds=0.0315), Behaviour()))
    beyond = verdict("itl_p95", fair(40, Behaviour(itl_seconds=0.045), Behaviour()))
    assert (within.level, beyond.level) == (Level.PASS, Level.FAIL)
    assert beyond.estimate == pytest.approx(0.5, abs=0.12)
    assert beyond.interval is not None
    assert beyond.interval[0] is not None
    assert beyond.interval[0] > 0
    assert beyond.proof is not None
    assert beyond.proof.threshold == pytest.approx(3 / 0.05)


def test_alpha_is_divided_among_guardrails_and_the_capital_among_steps_that_compare():
    evidence, chosen = seen([])
    assert chosen.alpha_each == pytest.approx(0.05 / 3)
    assert rail(evidence, "itl_p95").accusation.process.reserve == pytest.approx(0.5)
    following = evidence.next_step(chosen)
    assert rail(following, "itl_p95").accusation.process.reserve == pytest.approx(0.0)


def test_the_threshold_of_a_window_is_not_taken_from_that_window():
    evidence, _ = seen([window(tally(5), tally(5))])
    assert rail(evidence, "itl_p95").windows == 0
    assert rail(evidence, "itl_p95").stable.values.total == 100


def test_warm_up_windows_count_for_errors_and_not_for_latency():
    chosen = read_plan(plan())
    evidence = Evidence.start(chosen).reweighted(chosen)
    for _ in range(3):
        evidence = observe(evidence, chosen, window(tally(5, failed=1), tally(5)), is_promoted=False)
    assert (evidence.to_skip, rail(evidence, "itl_p95").canary.samples) == (0, 5)
    assert rail(evidence, "error_rate").canary.failures == 3


def test_the_share_realised_leaves_out_the_window_that_saw_two_weights():
    chosen = read_plan(plan())
    evidence = Evidence.start(chosen).reweighted(chosen)
    for _ in range(3):
        evidence = observe(evidence, chosen, window(tally(2), tally(8)), is_promoted=False)
    assert evidence.assigned == (16, 4)


def test_proof_of_no_harm_is_asked_for_where_the_stage_says_so():
    proving = Stage(5, 10, 2.0, 0.5, needs_proof=True)
    few = verdict("itl_p95", fair(7, Behaviour(0.02), Behaviour(), percent=50.0), proving)
    many = verdict("itl_p95", fair(40, Behaviour(0.02), Behaviour(), percent=50.0), proving)
    assert few.level == Level.INSUFFICIENT
    assert "not yet shown to be at most 10 % slower" in few.reason
    assert few.need is not None
    assert few.need.seconds is not None
    assert many.level == Level.PASS


def test_what_was_proven_at_a_small_weight_is_no_proof_at_a_large_one():
    proving, chosen = Stage(5, 10, 2.0, 0.5, needs_proof=True), read_plan(plan())
    evidence = Evidence.start(chosen)
    for item in fair(150, Behaviour(0.02), Behaviour()):
        evidence = observe(evidence, chosen, item, is_promoted=False)
    evidence = evidence.next_step(chosen)
    for item in fair(12, Behaviour(0.0335), Behaviour(), percent=50.0):
        evidence = observe(evidence, chosen, item, is_promoted=False)
    found = next(item for item in judge(evidence, chosen, proving) if item.guardrail == "itl_p95")
    assert found.level == Level.INSUFFICIENT
    assert "not yet shown to be at most 10 % slower" in found.reason


def test_an_unreached_number_of_requests_is_told_with_the_time_it_takes():
    found = verdict("error_rate", [window(tally(6), tally(30))])
    assert (found.level, found.reason.split(";")[0]) == (Level.INSUFFICIENT, "6 of 10 canary requests")
    assert found.need is not None
    assert (found.need.samples, found.need.seconds) == (4, 2.0)


def test_failures_on_the_canary_alone_fail_and_on_both_paths_do_not():
    alone = verdict("error_rate", [window(tally(10, failed=4), tally(40))] * 6)
    both = verdict("error_rate", [window(tally(10, failed=4), tally(40, failed=16))] * 6)
    assert (alone.level, both.level) == (Level.FAIL, Level.PASS)
    assert alone.estimate == pytest.approx(0.4)


def test_acceptance_below_its_floor_fails():
    low = verdict("acceptance", [window(tally(10, acceptance=0.4), tally(10))] * 5)
    good = verdict("acceptance", [window(tally(10, acceptance=0.68), tally(10))] * 5)
    assert (low.level, good.level) == (Level.FAIL, Level.PASS)
    assert low.limit == pytest.approx(0.63)
    assert low.estimate == pytest.approx(0.4)


def test_a_draft_that_is_away_is_never_mistaken_for_a_good_one():
    found = verdict("acceptance", [window(tally(10), tally(10))] * 5)
    assert found.level == Level.INSUFFICIENT
    assert "0 of 10 requests with a draft" in found.reason


def calibrated(windows) -> Verdict:
    guardrails = {"acceptance": {"max_decrease": "10%", "reference": "calibrate", "strata": []}}
    return verdict("acceptance", windows, guardrails=guardrails)


def test_the_reference_can_be_learned_from_the_first_requests():
    good = window(tally(10, acceptance=0.6), tally(10))
    learning = calibrated([good] * 3)
    assert learning.reason.startswith("calibrating: 30 requests with a draft, about ")
    learned = calibrated([good] * 30)
    assert learned.level == Level.PASS
    assert learned.limit is not None
    assert 0.95 * 0.54 <= learned.limit <= 0.54, "no higher than what was proven"
    fallen = calibrated([good] * 30 + [window(tally(10, acceptance=0.3), tally(10))] * 8)
    assert fallen.level == Level.FAIL


def test_a_draft_that_was_never_any_good_is_not_taken_for_the_reference():
    found = calibrated([window(tally(10, acceptance=0.0), tally(10))] * 8)
    assert found.level == Level.INSUFFICIENT
    assert "no drafted token was accepted" in found.reason


def test_the_mean_acceptance_is_exact_although_the_histogram_is_not():
    evidence, _ = seen([window(tally(7, acceptance=1 / 3), tally(1))])
    assert rail(evidence, "acceptance").strata["all"].seen.mean == pytest.approx(1 / 3, abs=1e-9)


def test_after_promotion_the_detectors_judge():
    bad = list(fair(60, Behaviour(0.05), Behaviour(), percent=90.0))
    evidence, chosen = seen(bad, is_promoted=True, holdback=10)
    assert rail(evidence, "itl_p95").accusation.process.log_e == pytest.approx(0.0)
    stage = Stage(0, 0, 2.0, 0.5, is_promoted=True)
    found = next(item for item in judge(evidence, chosen, stage) if item.guardrail == "itl_p95")
    assert found.level == Level.FAIL
    assert found.proof is not None
    assert found.proof.threshold == pytest.approx(1 / chosen.alpha_each), "the same as before promotion"


def test_a_hard_trip_is_a_failure_of_its_guardrail_alone():
    chosen = read_plan(plan())
    trip = HardTrip("speculative", HardTripKind.OOM, "no memory")
    found = {item.guardrail: item for item in judge(Evidence((), trip=trip), chosen, STAGE)}
    assert (found["oom"].level, found["oom"].reason) == (Level.FAIL, "no memory")
    assert found["crash_loop"].level == Level.PASS


def test_the_signal_tells_silence_of_the_canary_from_silence_of_all():
    def signal(*windows) -> Signal:
        evidence, _ = seen(windows)
        return evidence.signal

    nothing = PathTally()
    assert signal(window(tally(1), tally(9))) == Signal.SEEN
    assert signal(window(nothing, nothing)) == Signal.ALL_SILENT
    assert signal(window(nothing, tally(9))) == Signal.SEEN
    assert signal(window(nothing, tally(9), still_open=(2, 0))) == Signal.CANARY_SILENT
    assert signal(window(nothing, nothing, still_open=(2, 0), percent=100.0)) == Signal.CANARY_SILENT
    assert signal(window(nothing, nothing, still_open=(2, 2))) == Signal.ALL_SILENT
    assert signal(window(tally(1), nothing, still_open=(0, 2))) == Signal.SEEN


def test_a_request_longer_than_a_window_is_no_silence():
    def signal(*windows) -> Signal:
        evidence, _ = seen(windows)
        return evidence.signal

    came, prefilling = PathTally(assigned=1), PathTally(assigned=2)
    streaming = PathTally(output_tokens=40)
    assert signal(window(came, tally(9), still_open=(1, 3))) == Signal.SEEN, "it came just before the window closed"
    assert signal(window(streaming, tally(9), still_open=(1, 3))) == Signal.SEEN, "it streams and does not end"
    assert signal(window(came, prefilling, still_open=(1, 2))) == Signal.SEEN, "traffic flows, nothing can be due yet"
    assert signal(window(came, PathTally(), still_open=(1, 2))) == Signal.ALL_SILENT, "stable's waited all through it"
    assert signal(window(PathTally(), prefilling, still_open=(1, 2))) == Signal.ALL_SILENT, "too early to excuse stable"


def test_no_evidence_at_all_is_finite_everywhere():
    evidence, chosen = seen([])
    for item in judge(evidence, chosen, STAGE):
        if item.proof is not None:
            assert math.isfinite(item.proof.e_value)
            assert math.isfinite(item.proof.threshold)


def test_evidence_survives_being_written_down():
    adapter = TypeAdapter(get_type_hints(Evidence)["rails"])
    evidence, _ = seen([window(tally(10, failed=2, acceptance=0.6), tally(10))] * 5, guardrails=ALL)
    assert adapter.validate_python(adapter.dump_python(evidence.rails, mode="json")) == evidence.rails

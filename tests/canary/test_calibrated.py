from __future__ import annotations

from dataclasses import replace

import pytest

from canary.calibrated import (
    FRESH_SECONDS,
    KEPT,
    Advice,
    Calibrated,
    Tried,
    advise,
    judged_fields,
    recalled,
    with_newest,
)
from canary.calibrated import written as write_down
from canary.plan import Plan, read_plan
from tests.canary.world import plan

NOW = 1_700_000_000.0
FIT, UNKNOWN, UNFIT = (0, 0.0, 0.005), (24, 0.04, 0.08), (60, 0.12, 0.18)


def tried(seconds: float, figures: tuple[int, float, float]) -> Tried:
    rollbacks, lower, upper = figures
    return Tried(seconds, 400, rollbacks, lower, upper)


def kept(of: Plan, *rates: Tried, chosen: float | None = None, age: float = 60.0) -> Calibrated:
    return Calibrated(NOW - age, "speculative-3", judged_fields(of), rates, chosen)


PLAN = read_plan(plan(window="4s"))


def test_a_rate_above_alpha_refuses_and_says_what_to_do():
    advice = advise(PLAN, [kept(PLAN, tried(4.0, UNFIT), tried(8.0, FIT), chosen=8.0)], NOW)
    assert advice == Advice(
        refusal="60 of 400 A/A rollouts of 'speculative-3' were taken back with windows of 4s (12.0% to 18.0%), "
        "more than alpha 5.0%: set window: 8s, or start it with --manual and decide yourself"
    )
    hopeless = advise(PLAN, [kept(PLAN, tried(4.0, UNFIT), tried(8.0, UNFIT))], NOW)
    assert "no window that was tried is fit: loosen the limits that trip, bake longer, or" in (hopeless.refusal or "")


def test_the_window_that_was_found_fit_and_every_longer_one_may_act():
    for window in ("4s", "5s", "8s", "16s"):
        wanted = read_plan(plan(window=window))
        assert advise(wanted, [kept(wanted, tried(2.0, UNFIT), tried(4.2, FIT), chosen=4.2)], NOW) == Advice()


def test_a_rate_that_may_be_either_is_allowed_and_said():
    advice = advise(PLAN, [kept(PLAN, tried(4.0, UNKNOWN))], NOW)
    assert advice.refusal is None
    assert (advice.caution or "").endswith("(4.0% to 8.0%); whether that is too many is not known")


def test_a_window_that_was_not_tried_is_said():
    advice = advise(read_plan(plan(window="1s")), [kept(PLAN, tried(4.0, UNFIT), tried(8.0, UNFIT))], NOW)
    assert advice == Advice(caution="A/A rollouts were judged with windows of 4s, 8s, not of 1s")


def test_what_is_old_or_of_another_plan_forbids_nothing_and_is_said():
    old = advise(PLAN, [kept(PLAN, tried(4.0, UNFIT), age=FRESH_SECONDS + 86_400)], NOW)
    assert old == Advice(caution="the last A/A calibration of this plan is 8 days old: run it again")
    other = read_plan(plan(alpha=0.1, guardrails={"error_rate": {"max_increase": "1pp"}}))
    told = advise(PLAN, [kept(other, tried(4.0, UNFIT))], NOW).caution or ""
    assert told.startswith("the last A/A calibration was of a plan with other alpha, guardrails: ")
    assert (advise(PLAN, [], NOW).caution or "").startswith("no A/A calibration yet")


@pytest.mark.parametrize(
    "change",
    [{"canary": "other"}, {"min_requests": 99}, {"last_step": "no_harm"}, {"mode": "manual"}, {"window": "3s"}],
)
def test_what_the_rate_does_not_depend_on_makes_no_other_plan(change):
    assert judged_fields(read_plan(plan(**change))) == judged_fields(read_plan(plan()))


def test_the_latest_calibration_of_a_plan_counts_and_few_plans_are_remembered():
    plans = [read_plan(plan(alpha=0.001 * number)) for number in range(1, KEPT + 4)]
    remembered: tuple[Calibrated, ...] = ()
    for item in plans:
        remembered = with_newest(remembered, kept(item, tried(4.0, UNFIT)))
    remembered = with_newest(remembered, kept(plans[5], tried(4.0, FIT), chosen=4.0))
    assert len(remembered) == KEPT
    assert [item.judged["alpha"] for item in remembered].count(plans[5].alpha) == 1
    assert advise(plans[5].model_copy(update={"window": 4.0}), remembered, NOW) == Advice()
    assert recalled(write_down(remembered)) == remembered


def test_what_the_rollouts_could_not_try_is_said_even_where_the_rest_is_fit():
    fit = replace(kept(PLAN, tried(4.0, FIT), chosen=4.0), untried=("kv_pressure", "acceptance"))
    caution = advise(PLAN, [fit], NOW).caution
    assert caution == (
        "A/A rollouts did not try kv_pressure, acceptance: nothing in the record of 'speculative-3' speaks of it"
    )
    undecided = replace(fit, tried=(tried(4.0, UNKNOWN),), chosen_seconds=None)
    found = advise(PLAN, [undecided], NOW).caution
    assert found is not None
    assert found.endswith(caution)
    assert "whether that is too many is not known; " in found

from __future__ import annotations

import pytest
import yaml

from canary.plan import PathFacts, Plan, cautions, lone_hosts, misfits, read_plan
from fleet.errors import ConfigError
from fleet.traffic import Eligibility, SamplingMode
from tests.canary.world import PATHS, plan

DESIGN = """
stable: baseline
canary: speculative
eligible: {max_prompt_tokens: 4096, min_max_tokens: 16}
steps:
  - {weight: 5,  bake: 10m}
  - {weight: 25, bake: 10m}
  - {weight: 50, bake: 20m}
  - {weight: 100}
holdback: 2
window: 30s
alpha: 0.05
guardrails:
  itl_p95:         {max_increase: 10%}
  ttft_p95:        {max_increase: 15%}
  gap_p99:         {max: 250ms}
  error_rate:      {max_increase: 0.5pp}
  peak_throughput: {max_decrease: 5%}
  oom:             {max: 0}
  acceptance:      {max_decrease: 10%, reference: 0.62}
  realised_split:  {}
on_no_data: {hold: 120s, then: rollback}
"""


def test_the_plan_of_the_design_is_read_with_its_units():
    found = read_plan(yaml.safe_load(DESIGN))
    assert [(step.weight, step.bake) for step in found.steps] == [(5, 600), (25, 600), (50, 1200), (100, 0)]
    assert (found.window, found.holdback, found.on_no_data.hold) == (30.0, 2.0, 120.0)
    assert found.guardrails.itl_p95 is not None
    assert found.guardrails.itl_p95.max_increase == pytest.approx(0.10)
    assert found.guardrails.error_rate is not None
    assert found.guardrails.error_rate.max_increase == pytest.approx(0.005)
    assert found.eligible.rule() == Eligibility(4096, 16)
    assert found.guardrails.gap_p99 is not None
    assert found.guardrails.gap_p99.max == pytest.approx(0.25)
    assert found.alpha_each == pytest.approx(0.05 / 6)
    assert (found.capital_each, found.watch_share) == pytest.approx((1 / 3, 1 / 4))


@pytest.mark.parametrize(
    ("changes", "explanation"),
    [
        ({"steps": [{"weight": 50, "bake": "4s"}, {"weight": 5, "bake": "4s"}]}, "weights of the steps must increase"),
        ({"steps": [{"weight": 5, "bake": "1s"}, {"weight": 100}]}, "step 1 must bake at least one window (2s), not"),
        ({"steps": [{"weight": 5}, {"weight": 100}]}, "step 1 must bake at least one window"),
        ({"steps": [{"weight": 5, "bake": "4s"}]}, "the last step must have weight 100"),
        ({"steps": [{"weight": 100, "bake": "1s"}]}, "the last step must bake one window (2s) or not at all"),
        ({"steps": []}, "steps: "),
        ({"canary": "baseline"}, "stable and canary must be different paths"),
        ({"holdback": 50, "steps": [{"weight": 60, "bake": "4s"}, {"weight": 100}]}, "holdback 50 leaves no room"),
        ({"on_no_data": {"hold": "1s"}}, "on_no_data.hold must be at least one window"),
        ({"window": 30}, "window: write a duration such as 500ms, 30s, 10m or 2h, not 30"),
        ({"window": "500ms"}, "window: "),
        ({"alpha": 0.5}, "alpha: "),
        ({"wieght": 5}, "unknown key 'wieght'; known: stable, canary"),
        ({"holdbak": 5}, "unknown key 'holdbak'; did you mean holdback?"),
        ({"steps": [{"weigth": 5}, {"weight": 100}]}, "steps.0: unknown key 'weigth'; did you mean weight?"),
        (
            {"guardrails": {"itl_p95": {"max_increse": "10%"}}},
            "guardrails.itl_p95: unknown key 'max_increse'; did you mean max_increase?",
        ),
        ({"guardrails": {"gap_p99": {"max_increase": "10%"}}}, "unknown key 'max_increase'; known: max"),
        ({"guardrails": {"gap_p99": {"max": "2h"}}}, "gap_p99.max: "),
        ({"guardrails": {"queue_delay": {"max_increase": "10%"}}}, "write a duration such as 500ms"),
        ({"guardrails": {"kv_pressure": {"max_increase": "5pp", "above": "100%"}}}, "kv_pressure.above: "),
        ({"guardrails": {"stall": {"max_increase": "100pp"}}}, "stall.max_increase: "),
        ({"guardrails": {"peak_throughput": {"max_decrease": "100%"}}}, "peak_throughput.max_decrease: "),
        (
            {"guardrails": {"acceptance": {"max_decrease": "10%", "reference": 0.6, "strata": ["prompt"]}}},
            "strata have references of their own: use reference: calibrate",
        ),
        (
            {"guardrails": {"itl_p95": {"max_increase": 10}}},
            "itl_p95.max_increase: write a relative change such as 10%",
        ),
        ({"guardrails": {"error_rate": {"max_increase": "5%"}}}, "write percentage points such as 0.5pp"),
        ({"guardrails": {"itl_p59": {}}}, "unknown guardrail 'itl_p59'; did you mean itl_p95?"),
        (
            {"guardrails": {"xyz": {}}},
            "unknown guardrail 'xyz'; known: itl_p95, ttft_p95, tpot_p95, queue_delay",
        ),
        ({"guardrails": {"oom": {"max": 3}}}, "guardrails.oom: the first failure always trips"),
        (
            {"guardrails": {"acceptance": {"max_decrease": "10%", "reference": "evidence"}}},
            "reference: evidence needs the plan's evidence",
        ),
        ({"guardrails": {"acceptance": {"max_decrease": "10%", "reference": 1.5}}}, "reference must be above 0"),
    ],
)
def test_an_impossible_plan_is_refused_in_one_line(changes, explanation):
    with pytest.raises(ConfigError) as refusal:
        read_plan(plan(**changes))
    assert explanation in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_every_wrong_field_is_named_at_once():
    with pytest.raises(ConfigError) as refusal:
        read_plan(plan(alpha=9, window="soon"))
    assert "alpha" in str(refusal.value)
    assert "window" in str(refusal.value)


def test_a_wrong_bake_is_the_only_thing_said_of_the_steps():
    with pytest.raises(ConfigError) as refusal:
        read_plan(plan(steps=[{"weight": 5, "bake": "10"}]))
    assert str(refusal.value) == "steps.0.bake: write a duration such as 500ms, 30s, 10m or 2h, not '10'"


def test_eligibility_becomes_the_routers_rule():
    given = {"sampling": "greedy", "tenants": ["team-a"], "headers": {"X-Beta": "1"}}
    rule = read_plan(plan(eligible=given)).eligible.rule()
    assert rule == Eligibility(sampling=SamplingMode.GREEDY, tenants=("team-a",), headers=(("x-beta", "1"),))


def fits(**changes) -> list[str]:
    return misfits(read_plan(plan(**changes)), PATHS, "baseline")


def test_a_plan_must_fit_the_fleet():
    assert fits() == []
    assert fits(canary="turbo") == ["canary: no path 'turbo'; there are: baseline, speculative"]
    assert fits(stable="speculative", canary="baseline", guardrails={}) == [
        "stable: the fleet's stable path is 'baseline', not 'speculative' (a promotion moves it); "
        "swap 'stable' and 'canary' to go the other way"
    ]


def test_acceptance_of_a_path_that_does_not_speculate_is_refused():
    paths = {"baseline": PathFacts(1, False), "speculative": PathFacts(1, False)}
    found = misfits(read_plan(plan()), paths, "baseline")
    assert found == ["guardrails.acceptance: 'speculative' does not speculate, so it has no acceptance"]


def test_what_is_seldom_wise_is_said():
    told = cautions(read_plan(plan(guardrails={}, steps=[{"weight": 100}])))
    assert any(line.startswith("window:") for line in told)
    assert any(line.startswith("guardrails:") for line in told)
    assert any(line.startswith("steps:") for line in told)
    slow = cautions(read_plan(plan(steps=[{"weight": 10, "bake": "1h"}, {"weight": 100}])))
    assert any("hundreds of windows" in line for line in slow)


def test_a_proof_that_nothing_can_give_is_said_to_be_none():
    blind = read_plan(plan(guardrails={"error_rate": {"max_increase": "1pp"}}))
    assert any(line.startswith("last_step: non_inferior is a proof on itl_p95") for line in cautions(blind))
    at_once = read_plan(plan(steps=[{"weight": 100, "bake": "10m"}], holdback=5))
    assert any("needs a step before the last one" in line for line in cautions(at_once))
    for honest in (plan(guardrails={}, last_step="no_harm"), plan()):
        assert not any(line.startswith("last_step") for line in cautions(read_plan(honest)))


def test_a_holdback_is_a_baseline_and_lint_says_so():
    def told(**changes) -> list[str]:
        return [line for line in cautions(read_plan(plan(**changes))) if "at once" in line]

    assert told(steps=[{"weight": 100}]) == [
        "steps: everything moves at once, so no step has a baseline to compare with"
    ]
    watched = told(steps=[{"weight": 100}], holdback=5)
    assert watched[0].endswith("; only the watch over the holdback of 5 % compares")
    assert told(steps=[{"weight": 100, "bake": "10m"}], holdback=5) == []


def test_going_back_to_a_path_that_does_not_speculate_needs_no_evidence_that_speculation_pays():
    back = read_plan(plan(stable="speculative", canary="baseline", guardrails={"itl_p95": {"max_increase": "10%"}}))
    assert any(line.startswith("evidence:") for line in cautions(back))
    assert not any(line.startswith("evidence:") for line in cautions(back, speculates=False))


def test_a_path_of_one_replica_is_said_to_be_one_with_its_host():
    def told(stable: int, canary: int) -> list[str]:
        facts = {"baseline": PathFacts(stable, False), "speculative": PathFacts(canary, True)}
        return lone_hosts(read_plan(plan()), facts)

    assert told(2, 2) == []
    assert "'speculative' with one replica" in told(2, 1)[0]
    assert "'baseline' and 'speculative' with one replica" in told(1, 1)[0]


def test_a_plan_in_the_shape_of_the_design_lacks_only_evidence():
    found = cautions(Plan.model_validate(yaml.safe_load(DESIGN)))
    assert found == [
        "evidence: none is given, so nothing but the guardrails says whether speculation pays",
        "peak_throughput: counts all requests of each path, and only the eligible ones reach the canary",
    ]


def test_a_learned_acceptance_with_a_limit_finer_than_its_requests_can_tell_is_told():
    def told(**limit) -> bool:
        chosen = read_plan(plan(guardrails={"acceptance": {"reference": "calibrate"} | limit}))
        return any(line.startswith("acceptance: below a limit of 5 %") for line in cautions(chosen))

    assert told(max_decrease="2%")
    assert not told(max_decrease="10%")
    assert not told(max_decrease="2%", reference=0.7), "what is given need not be learned"


def test_the_watch_has_the_capital_of_one_more_step_where_there_is_one():
    assert read_plan(plan()).watch_share == 0.0
    assert read_plan(plan(holdback=10)).watch_share == pytest.approx(1 / 3)
    assert read_plan(plan(holdback=10, steps=[{"weight": 100}])).watch_share == 1.0

from __future__ import annotations

from canary.guardrails import Evidence, budget_of, observe
from canary.plan import Plan, read_plan
from canary.power import blind_spots, fewest_windows, judged_windows
from tests.canary.events_strategy import tally, window
from tests.canary.world import plan


def planned(bake: str, **changes) -> Plan:
    return read_plan(
        plan(steps=[{"weight": 5, "bake": bake}, {"weight": 50, "bake": bake}, {"weight": 100}], **changes)
    )


def test_the_worst_canary_is_found_in_as_few_windows_as_foretold():
    chosen = planned("60s", warmup_windows=0)
    evidence, seen = Evidence.start(chosen), 0
    worst = window(tally(10, itl=9.0), tally(10))
    evidence = observe(evidence, chosen, worst, is_promoted=False)
    rail = evidence.rails[0]
    while not rail.proof(budget_of(chosen)).is_reached:
        evidence, seen = observe(evidence, chosen, worst, is_promoted=False), seen + 1
        rail = evidence.rails[0]
    # Stable's own share above its p95 is 0 to 5 %, so the worst difference is not quite 1.
    assert fewest_windows(chosen) <= seen <= fewest_windows(chosen) + 3


def test_a_plan_too_short_to_find_anything_is_said_to_be():
    assert judged_windows(planned("20s")) == 16
    assert blind_spots(planned("40s")) == []
    found = blind_spots(planned("8s"))
    assert len(found) == 1
    assert "even the worst canary takes" in found[0]
    assert blind_spots(planned("8s", guardrails={})) == []


def test_a_watch_takes_its_part_of_the_capital_and_is_all_there_is_where_no_step_compares():
    assert fewest_windows(planned("40s", holdback=10)) >= fewest_windows(planned("40s"))
    watched = read_plan(plan(holdback=10, steps=[{"weight": 100}]))
    assert 0 < fewest_windows(watched) < 40
    assert judged_windows(watched) == 0

from __future__ import annotations

import pytest

from canary.guardrails import Signal
from canary.verdict import Level
from canary.windows import ArmUsage
from fleet.traffic import PathTally
from tests.canary.judging.rails import evidence_of, verdict, window


def drawn(canary: int, stable: int, **changes):
    return window(PathTally(newcomers=canary), PathTally(newcomers=stable), **changes)


def test_a_split_as_set_passes():
    found = verdict("realised_split", {}, [drawn(2, 8)] * 50)
    assert found.level == Level.PASS
    assert found.reason == "20.0% of 500 new users since the warm-up went to the canary, 20.0% was set"


def test_silence_of_the_canary_is_heard_through_a_wrong_split():
    answering = PathTally(assigned=3, outcomes={"done": 3})
    silent = window(PathTally(assigned=3), answering, usage=(ArmUsage(open_requests=4), ArmUsage()))
    found = evidence_of("realised_split", {}, [*[drawn(6, 4)] * 50, silent])
    assert found.signal == Signal.CANARY_SILENT


@pytest.mark.parametrize("canary", [0, 6])
def test_a_wrong_split_cannot_be_judged_by_and_stays_so(canary):
    wrong = [drawn(canary, 10 - canary)] * 50
    found = verdict("realised_split", {}, [*wrong, *[drawn(2, 8)] * 200])
    assert found.level == Level.NO_DATA
    assert "nothing is moved" in found.reason
    assert evidence_of("realised_split", {}, wrong).signal == Signal.MISROUTED


def test_one_heavy_user_is_one_draw():
    heavy = PathTally(newcomers=0, assigned=500)
    found = verdict("realised_split", {}, [drawn(1, 4), *[window(heavy, PathTally(assigned=20))] * 50])
    assert (found.level, found.samples) == (Level.PASS, 5)


def test_users_counted_by_many_routers_weigh_no_more_than_once():
    once = verdict("realised_split", {}, [drawn(6, 4)] * 3)
    thrice = verdict("realised_split", {}, [drawn(18, 12, routers=("r1", "r2", "r3"))] * 3)
    assert once.proof is not None
    assert thrice.proof is not None
    assert thrice.proof.log_e == pytest.approx(once.proof.log_e)


def test_a_router_that_was_restarted_may_count_everybody_again():
    again = [drawn(6, 4, routers=(name,)) for name in ("r1", "r1-restarted")]
    once, twice = (verdict("realised_split", {}, items) for items in (again[:1], again))
    assert once.proof is not None
    assert twice.proof is not None
    assert twice.proof.log_e == pytest.approx(once.proof.log_e)


def test_at_the_ends_there_is_nothing_to_draw():
    assert verdict("realised_split", {}, [drawn(9, 0, percent=100.0)] * 9).reason == "no new users yet"

from __future__ import annotations

from canary.fleet_view import STALE_SECONDS, FleetView
from canary.plan import PathFacts
from canary.rates import ENOUGH_ROUNDS, Rates, Totals
from canary.windows import ArmUsage, AtClose
from fleet.traffic import HardTrip, HardTripKind, PathTally, ReplicaReport, RouterReport
from tests.canary.world import replica


def view(replicas: int = 1) -> FleetView:
    return FleetView({"speculative": PathFacts(replicas, True)})


def router(sequence: int, applied: int, in_flight: int = 0) -> RouterReport:
    return RouterReport("r", sequence, applied, {}, {}, in_flight={"speculative": in_flight})


def test_a_replica_without_news_for_five_seconds_is_gone():
    seen = view()
    seen.replica_reported(replica("speculative", "a"), 0.0)
    seen.expire(STALE_SECONDS)
    assert seen.ready("speculative") == 1
    seen.expire(STALE_SECONDS + 0.1)
    assert seen.ready("speculative") == 0


def test_the_third_replica_lost_within_two_minutes_is_a_crash_loop():
    seen, trips = view(), []
    for number in range(3):
        seen.replica_reported(replica("speculative", f"replica-{number}"), 30.0 * number)
        assert trips == []
        trips = seen.expire(30.0 * number + 6)
    assert [(trip.path, trip.kind) for trip in trips] == [("speculative", HardTripKind.CRASH_LOOP)]
    assert "replica-0, replica-1, replica-2" in trips[0].detail
    assert seen.expire(70.0) == []


def test_losses_that_lie_far_apart_are_no_crash_loop():
    seen = view()
    for number in range(6):
        seen.replica_reported(replica("speculative", f"replica-{number}"), 70.0 * number)
        assert seen.expire(70.0 * number + 6) == []


def test_a_replica_that_is_retired_while_enough_others_are_ready_is_not_lost():
    seen = view(replicas=1)
    for second in range(40):
        for number in range(4):
            if second < 10 or number == 0:
                seen.replica_reported(replica("speculative", f"replica-{number}"), float(second))
        assert seen.expire(float(second)) == []
    assert list(seen.losses) == []


def test_running_out_of_memory_trips_once_per_failure():
    seen = view()
    assert seen.replica_reported(replica("speculative", "a", out_of_memory=1), 0.0).trips == ()
    trips = seen.replica_reported(replica("speculative", "a", out_of_memory=2), 1.0).trips
    assert [trip.kind for trip in trips] == [HardTripKind.OOM]
    assert seen.replica_reported(replica("speculative", "a", out_of_memory=2), 2.0).trips == ()


def lost_after(kills: int, witness_kills: int, *, witness_scope: str = "host") -> list[HardTrip]:
    """The trips when a replica goes whose last word was `kills`, and its neighbour of another path lives on."""
    seen = FleetView({"baseline": PathFacts(1, False), "speculative": PathFacts(1, True)})
    seen.replica_reported(replica("speculative", "a", oom_scope="host", oom_kills=kills), 0.0)
    trips = []
    for second in range(1, 20):
        neighbour = replica("baseline", "b", oom_scope=witness_scope, oom_kills=witness_kills)
        seen.replica_reported(neighbour, float(second))
        trips += seen.expire(float(second))
    return trips


def test_a_replica_that_is_lost_while_the_kernel_kills_on_its_machine_ran_out_of_memory():
    (trip,) = lost_after(3, 4)
    assert (trip.path, trip.kind) == ("speculative", HardTripKind.OOM)
    assert "replica a was lost while the kernel killed" in trip.detail


def test_a_loss_without_a_kill_or_with_one_elsewhere_is_only_a_loss():
    assert lost_after(3, 3) == []
    assert lost_after(3, 0) == [], "a witness that cannot read the count any more"
    assert lost_after(3, 4, witness_scope="another") == []


def test_where_nobody_else_is_on_its_machine_whoever_comes_in_its_place_tells():
    for kills, comes_at, expected in ((1, 60.0, [HardTripKind.OOM]), (0, 60.0, []), (1, 150.0, [])):
        seen = view()
        seen.replica_reported(replica("speculative", "a", oom_scope="host"), 0.0)
        assert seen.expire(6.0) == []
        assert seen.expire(comes_at - 1.0) == []
        seen.replica_reported(replica("speculative", "b", oom_scope="host", oom_kills=kills), comes_at)
        assert [trip.kind for trip in seen.expire(comes_at)] == expected
        assert seen.expire(comes_at + 1.0) == []
        assert seen.unwitnessed == []


def test_a_kill_after_the_loss_is_not_its_cause():
    seen = FleetView({"baseline": PathFacts(1, False), "speculative": PathFacts(1, True)})
    seen.replica_reported(replica("speculative", "a", oom_scope="host"), 0.0)
    for second in range(1, 30):
        kills = int(second > 10)
        seen.replica_reported(replica("baseline", "b", oom_scope="host", oom_kills=kills), float(second))
        assert seen.expire(float(second)) == []


def test_preemptions_are_counted_as_they_happen():
    seen = view()
    assert seen.replica_reported(replica("speculative", "a", preemptions=5), 0.0).preemptions == 0
    assert seen.replica_reported(replica("speculative", "a", preemptions=7), 1.0).preemptions == 2
    assert seen.replica_reported(replica("speculative", "b", preemptions=0), 1.0).preemptions == 0


def test_what_happened_on_the_way_to_drafts_is_counted_as_it_happens_and_a_restart_takes_nothing_back():
    seen = view()
    for counts, news in (({"late": 5}, {}), ({"late": 7, "wrong": 1}, {"late": 2, "wrong": 1}), ({"late": 1}, {})):
        report = replica("speculative", "a", draft_link=counts)
        assert seen.replica_reported(report, 0.0).draft_link == news


def test_a_report_that_is_sent_again_shows_life_and_brings_back_no_old_split():
    seen = view()
    seen.router_reported(router(1, applied=1), 0.0)
    seen.router_reported(router(2, applied=2, in_flight=4), 1.0)
    seen.router_reported(router(1, applied=1), 4.0)
    assert seen.follows(2)
    assert seen.in_flight("speculative") == 4
    seen.expire(8.0)
    assert seen.follows(2)


def test_without_routers_nobody_follows_a_split():
    assert not view().follows(0)


def test_rates_cover_the_last_ten_seconds():
    rates = Rates()
    for second in range(31):
        rates.sample(float(second), {"speculative": Totals(second * second, 10 * second, 7 * second)})
    assert rates.tokens_per_second("speculative") == (30 * 30 - 20 * 20) / 10
    assert rates.acceptance("speculative") == 0.7
    assert rates.tokens_per_second("baseline") == 0.0
    assert rates.acceptance("baseline") is None


def test_the_rate_of_requests_is_that_of_all_paths():
    rates = Rates()
    assert rates.requests_per_second() == 0.0
    for second in range(31):
        rates.sample(float(second), {"a": Totals(requests=2 * second), "b": Totals(requests=second)})
    assert rates.requests_per_second() == 3.0


def test_what_a_path_drafted_is_remembered_from_when_it_was_last_busy():
    rates = Rates()
    for second in range(31):
        rates.sample(float(second), {"speculative": Totals(rounds=100 * second, drafted=40 * second, accepted=second)})
    for second in range(31, 60):
        rates.sample(float(second), {"speculative": Totals(rounds=3000, drafted=1200, accepted=30)})
    busy = rates.busy["speculative"]
    assert busy.rounds >= ENOUGH_ROUNDS
    assert busy.drafted > 0
    assert rates.seen("speculative").acceptance == 30 / 1200
    assert rates.acceptance("speculative") is None


def test_totals_are_what_the_tallies_counted():
    tally = PathTally(rounds=3, empty_rounds=5, late_rounds=2, drafted=12, accepted=9, output_tokens=40)
    tally.outcomes = {"done": 3, "failed": 1}
    assert Totals.of(tally) == Totals(40, 12, 9, rounds=8, late=2, requests=4)


def test_a_look_at_a_path_says_how_busy_its_replicas_are():
    seen = FleetView({"speculative": PathFacts(3, True, gpus=1.5), "baseline": PathFacts(1, False)})
    busy = {"running": 15, "running_limit": 16, "kv_used_tokens": 950, "kv_total_tokens": 1000}
    queued = {"waiting": 2, "running_limit": 16, "kv_used_tokens": 100, "kv_total_tokens": 1000}
    idle = {"running": 2, "running_limit": 16, "kv_used_tokens": 100, "kv_total_tokens": 1000}
    for number, load in enumerate((busy, queued, idle)):
        seen.replica_reported(replica("speculative", f"s{number}", **load), 1.0)
    seen.replica_reported(replica("baseline", "b0"), 1.0)
    assert seen.usage("speculative", 0.9) == ArmUsage(looks=1, samples=3, saturated=2, pressed=1, gpus=4.5)
    assert seen.usage("baseline", 0.9).gpus == 1.0, "without GPUs a replica counts"


def test_a_closing_window_is_told_who_is_open_and_who_counted():
    seen = FleetView({"speculative": PathFacts(1, True)})
    for router, waiting in (("r1", 2), ("r2", 3)):
        report = RouterReport(router, 1, 1, {}, {}, in_flight={"speculative": 4}, open={"speculative": waiting})
        seen.router_reported(report, 1.0)
    assert seen.at_close() == AtClose({"speculative": 5}, ("r1", "r2"))


def test_a_router_is_told_what_the_others_have_open() -> None:
    view = FleetView({"baseline": PathFacts(1, False), "speculative": PathFacts(1, True)})
    for name, open_streams in (("a", {"speculative": 2}), ("b", {"speculative": 3, "baseline": 1}), ("c", {})):
        view.router_reported(RouterReport(name, 1, 1, {}, {}, in_flight=open_streams), 10.0)
    assert view.open_elsewhere("a") == {"speculative": 3, "baseline": 1}
    assert view.open_elsewhere("c") == {"speculative": 5, "baseline": 1}


def test_a_paths_fingerprint_is_that_of_its_replicas_and_shows_where_they_differ() -> None:
    view = FleetView({"baseline": PathFacts(2, False), "speculative": PathFacts(1, True)})
    for name, version in (("x", "1"), ("y", "2")):
        fingerprint = (("version.torch", version), ("model.dtype", "bfloat16"))
        view.replica_reported(ReplicaReport("baseline", name, 1, 0, 0, 0, 1, 0, 0, fingerprint=fingerprint), 10.0)
    assert view.fingerprints() == {
        "baseline": {"version.torch": "1 | 2", "model.dtype": "bfloat16", "path.replicas": "2"},
        "speculative": {},
    }

"""Hard trips: what takes the canary out without statistics."""

from fleet.errors import OutOfMemory, ReplicaLost, Unavailable
from fleet.traffic import HardTripKind
from router.trips import TripWire


def test_the_first_out_of_memory_trips() -> None:
    trip = TripWire().check("speculative", OutOfMemory("tried to allocate 9 GiB"), 0.0)
    assert trip is not None
    assert (trip.path, trip.kind, trip.detail) == ("speculative", HardTripKind.OOM, "tried to allocate 9 GiB")


def test_three_distinct_replicas_lost_within_two_minutes_are_a_crash_loop() -> None:
    wire = TripWire()
    assert wire.check("speculative", ReplicaLost("gone", replica="a:1"), 0.0) is None
    assert wire.check("speculative", ReplicaLost("gone", replica="a:2"), 60.0) is None
    trip = wire.check("speculative", ReplicaLost("gone", replica="a:3"), 119.0)
    assert trip is not None
    assert trip.kind is HardTripKind.CRASH_LOOP
    assert "a:1, a:2, a:3" in trip.detail


def test_many_streams_broken_by_one_death_count_once_and_old_deaths_not_at_all() -> None:
    wire = TripWire()
    for moment in (0.0, 1.0, 2.0, 3.0):
        assert wire.check("speculative", ReplicaLost("gone", replica="a:1"), moment) is None
    assert wire.check("speculative", ReplicaLost("gone", replica="a:2"), 10.0) is None
    assert wire.check("speculative", ReplicaLost("gone", replica="a:3"), 121.0) is None


def test_paths_are_watched_apart_and_nameless_or_other_failures_do_not_count() -> None:
    wire = TripWire()
    for number, path in enumerate(["baseline", "speculative"] * 2):
        assert wire.check(path, ReplicaLost("gone", replica=f"a:{number}"), 0.0) is None
    for _ in range(5):
        assert wire.check("baseline", ReplicaLost("silent for 60 s"), 1.0) is None
        assert wire.check("baseline", Unavailable("no replica"), 1.0) is None

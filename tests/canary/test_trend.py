"""The past of every path: points from counters, bounded, and the overview that hands them out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary.trend import GRAINS, LATEST, Grain, Moment, Series
from fleet.errors import BadRequest
from fleet.traffic import PathTally
from tests.canary.world import World, plan


def add(tally: PathTally, itl_seconds: list[float]) -> None:
    for value in itl_seconds:
        tally.itl.add(value)
    tally.output_tokens += len(itl_seconds)


def test_a_point_tells_of_the_time_since_the_last_one_only() -> None:
    series, tally = Series(Grain(5.0, 10)), PathTally()
    add(tally, [9.0] * 100)
    series.sample(Moment(0.0, 100.0), {"a": tally})
    add(tally, [0.02] * 10)
    series.sample(Moment(5.0, 105.0), {"a": tally})
    add(tally, [0.04] * 30)
    series.sample(Moment(10.0, 110.0, 25.0, 24.0), {"a": tally})

    first, second = series.points(after=0.0)
    assert first["paths"]["a"]["itl"] == pytest.approx((0.02, 0.02), rel=0.01)
    assert second["paths"]["a"]["itl"] == pytest.approx((0.04, 0.04), rel=0.01)
    assert (first["paths"]["a"]["tokens_per_second"], second["paths"]["a"]["tokens_per_second"]) == (2.0, 6.0)
    assert (second["at"], second["weight_set"], second["weight_realised"]) == (110.0, 25.0, 24.0)


def test_a_path_that_was_silent_has_no_latency_but_is_there() -> None:
    series, tally = Series(Grain(5.0, 10)), PathTally()
    add(tally, [0.02])
    for at in (0.0, 5.0):
        series.sample(Moment(at, at), {"a": tally})
    point = series.points(after=0.0)[0]["paths"]["a"]
    assert (point["itl"], point["ttft"], point["requests"], point["accepted_at"]) == (None, None, 0, [])


def test_acceptance_is_counted_by_position_without_gaps() -> None:
    series, tally = Series(Grain(5.0, 10)), PathTally()
    series.sample(Moment(0.0, 0.0), {})
    tally.rounds, tally.accepted_at = 10, {0: 8, 2: 3}
    series.sample(Moment(5.0, 5.0), {"a": tally})
    assert series.points(after=0.0)[0]["paths"]["a"]["accepted_at"] == [8, 0, 3]


@given(st.lists(st.floats(0.1, 30.0), max_size=60))
def test_points_are_bounded_spaced_and_together_count_every_token(pauses: list[float]) -> None:
    series, tally, now = Series(Grain(5.0, 8)), PathTally(), 0.0
    series.sample(Moment(now, now), {"a": tally})
    for pause in pauses:
        now += pause
        add(tally, [0.02])
        series.sample(Moment(now, now), {"a": tally})
    points = series.points(after=-1.0)
    assert len(points) <= 8
    assert all(point["seconds"] >= 5.0 for point in points)
    if len(points) < 8:
        seen = sum(round(point["paths"]["a"]["tokens_per_second"] * point["seconds"]) for point in points)
        assert seen == sum(1 for at in _sums(pauses) if points and at <= points[-1]["at"])


def _sums(pauses: list[float]) -> list[float]:
    total, found = 0.0, []
    for pause in pauses:
        total += pause
        found.append(total)
    return found


def test_the_overview_hands_out_what_is_news_and_nothing_twice(tmp_path) -> None:
    world = World(tmp_path)
    world.run(12)
    first = world.command("overview")["overview"]
    assert first["status"]["split"]["canary"] is None
    assert (first["every_seconds"], first["kept"]) == (GRAINS[LATEST].seconds, GRAINS[LATEST].length)
    assert [point["weight_set"] for point in first["points"]] == [None, None]
    assert first["events"] == []

    world.command("start", plan=plan())
    world.run(10)
    since = {"after": first["points"][-1]["at"], "after_event": 0}
    second = world.command("overview", **since)["overview"]
    assert [point["weight_set"] for point in second["points"]] == [5, 5]
    assert all(point["paths"]["baseline"]["itl"] for point in second["points"])
    assert second["events"][0]["event"] == "RolloutStarted"
    assert "WindowClosed" not in {event["event"] for event in second["events"]}

    again = {"after": second["points"][-1]["at"], "after_event": second["events"][-1]["id"]}
    third = world.command("overview", **again)["overview"]
    assert (third["points"], third["events"]) == ([], [])


def test_events_of_earlier_rollouts_stay_in_the_overview(tmp_path) -> None:
    world = World(tmp_path)
    for _ in range(2):
        world.command("start", plan=plan())
        world.run(2)
        world.command("abort", reason="enough")
    rollouts = [event["rollout"] for event in world.command("overview")["overview"]["events"]]
    assert rollouts == sorted(rollouts)
    assert set(rollouts) == {"speculative-1", "speculative-2"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"span": "1y"}, "span must be one of 30m, 12h"),
        ({"span": ["30m"]}, "span must be one of"),
        ({"after": "now"}, "after must be a number"),
        ({"after": -1}, "after must be a number of at least 0"),
        ({"after": float("nan")}, "after must be a number"),
        ({"after": True}, "after must be a number"),
        ({"after_event": 1.5}, "after_event must be a whole number"),
    ],
)
def test_an_overview_of_nonsense_is_refused(tmp_path, arguments, complaint) -> None:
    with pytest.raises(BadRequest, match=complaint):
        World(tmp_path).command("overview", **arguments)

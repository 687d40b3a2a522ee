"""Routing decisions: eligible, overridden, sticky, monotone, and blind to keys that stand for a crowd."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import BadRequest
from fleet.traffic import Eligibility, SamplingMode, Split, WinningCell
from router.split import AssignmentKeys, CurrentSplit, RequestFacts, choose_path, is_eligible, position_of

PATHS = ("baseline", "speculative")


def facts(request_id: str = "r", user: str | None = None, **more: object) -> RequestFacts:
    defaults: dict[str, object] = {"prompt_tokens": 10, "max_tokens": 100, "is_greedy": False}
    return RequestFacts(request_id=request_id, user=user, **(defaults | more))  # type: ignore[arg-type]


def split(percent: float, salt: str = "s", eligible: Eligibility = Eligibility()) -> Split:  # noqa: B008 - frozen
    return Split(1, "baseline", "speculative", percent, salt, eligible)


def path_of(user: str, percent: float, salt: str = "s") -> str:
    return choose_path(split(percent, salt), facts(user=user), AssignmentKeys(("user",)), PATHS).path


@pytest.mark.parametrize("percent", [1.0, 5.0, 25.0, 50.0, 98.0])
def test_the_share_of_users_on_the_canary_is_the_weight_within_binomial_bounds(percent: float) -> None:
    users = 4000
    canary = sum(path_of(f"user-{i}", percent) == "speculative" for i in range(users))
    sigma = math.sqrt(users * percent / 100 * (1 - percent / 100))
    assert abs(canary - users * percent / 100) < 4 * sigma


@given(st.text(max_size=30), st.floats(0, 100), st.floats(0, 100))
def test_raising_the_weight_never_moves_a_user_back(user: str, one: float, other: float) -> None:
    low, high = sorted((one, other))
    if path_of(user, low) == "speculative":
        assert path_of(user, high) == "speculative"


@given(st.text(max_size=30), st.floats(0, 100))
def test_a_user_stays_in_its_arm_while_the_weight_stands(user: str, percent: float) -> None:
    keys = AssignmentKeys(("user",))
    first, second = (choose_path(split(percent), facts(r, user=user or "u"), keys, PATHS) for r in ("a", "b"))
    assert first == second


def test_weight_0_and_100_leave_no_exception() -> None:
    assert {path_of(f"u{i}", 0.0) for i in range(2000)} == {"baseline"}
    assert {path_of(f"u{i}", 100.0) for i in range(2000)} == {"speculative"}


def test_two_rollouts_draw_their_canary_users_independently() -> None:
    users = [f"user-{i}" for i in range(4000)]
    first, second = ({u for u in users if path_of(u, 50, salt) == "speculative"} for salt in ("one", "two"))
    assert abs(len(first & second) - 1000) < 4 * math.sqrt(4000 * 0.25 * 0.75)


@given(st.text(), st.text())
def test_positions_lie_in_the_half_open_unit_interval(salt: str, key: str) -> None:
    assert 0.0 <= position_of(salt, key) < 1.0


@pytest.mark.parametrize(
    ("rule", "fits", "fails"),
    [
        (Eligibility(max_prompt_tokens=10), {"prompt_tokens": 10}, {"prompt_tokens": 11}),
        (Eligibility(min_max_tokens=16), {"max_tokens": 16}, {"max_tokens": 15}),
        (Eligibility(sampling=SamplingMode.GREEDY), {"is_greedy": True}, {"is_greedy": False}),
        (Eligibility(sampling=SamplingMode.SAMPLED), {"is_greedy": False}, {"is_greedy": True}),
        (Eligibility(tenants=("acme",)), {"tenant": "acme"}, {"tenant": "other"}),
        (Eligibility(tenants=("ann",)), {"user": "ann"}, {}),
        (Eligibility(headers=(("X-Tier", "gold"),)), {"headers": {"x-tier": "gold"}}, {"headers": {"x-tier": "tin"}}),
    ],
)
def test_each_eligibility_bound_counts(rule: Eligibility, fits: dict[str, object], fails: dict[str, object]) -> None:
    assert is_eligible(facts(**fits), rule)  # type: ignore[arg-type]
    assert not is_eligible(facts(**fails), rule)  # type: ignore[arg-type]


def test_ineligible_requests_stay_on_stable_outside_the_comparison() -> None:
    choice = choose_path(
        split(100, eligible=Eligibility(min_max_tokens=500)), facts(), AssignmentKeys(("user",)), PATHS
    )
    assert (choice.path, choice.is_compared) == ("baseline", False)


@pytest.mark.parametrize(
    ("rule", "asked", "is_typical"),
    [
        (Eligibility(sampling=SamplingMode.GREEDY), {"is_greedy": False}, False),
        (Eligibility(max_prompt_tokens=5), {}, False),
        (Eligibility(tenants=("acme",)), {"tenant": "other"}, False),
        (Eligibility(sampling=SamplingMode.SAMPLED), {}, True),
        (Eligibility(cells=()), {}, True),
        (Eligibility(sampling=SamplingMode.GREEDY, cells=()), {}, False),
    ],
)
def test_only_what_the_rule_without_its_cells_admits_is_the_traffic_that_evidence_is_about(
    rule: Eligibility, asked: dict[str, object], is_typical: bool
) -> None:
    for percent in (0, 100):
        asking, keys = facts(**asked), AssignmentKeys(("user",))  # type: ignore[arg-type]
        choice = choose_path(split(percent, eligible=rule), asking, keys, PATHS)
        assert choice.is_typical is is_typical


def test_without_a_canary_all_is_typical_but_what_names_its_path() -> None:
    keys, alone = AssignmentKeys(("user",)), Split(3, "baseline", eligible=Eligibility(max_prompt_tokens=5))
    assert choose_path(alone, facts(), keys, PATHS).is_typical
    assert not choose_path(alone, facts(headers={"x-fleet-path": "baseline"}), keys, PATHS).is_typical


def test_the_override_header_wins_and_is_not_compared() -> None:
    choice = choose_path(split(100), facts(headers={"x-fleet-path": "baseline"}), AssignmentKeys(("user",)), PATHS)
    assert (choice.path, choice.is_compared) == ("baseline", False)


def test_an_override_to_an_unknown_path_is_a_bad_request_that_names_the_header() -> None:
    with pytest.raises(BadRequest, match="no path 'fast'") as caught:
        choose_path(split(0), facts(headers={"x-fleet-path": "fast"}), AssignmentKeys(("user",)), PATHS)
    assert caught.value.param == "x-fleet-path"


def test_without_a_rollout_nothing_is_compared() -> None:
    choice = choose_path(Split(3, "baseline"), facts(), AssignmentKeys(("user",)), PATHS)
    assert (choice.path, choice.is_compared) == ("baseline", False)


def test_the_first_present_key_of_the_list_is_used() -> None:
    keys = AssignmentKeys(("header:X-Session-Id", "user", "request_id"))
    assert keys.key_of(facts("r1", user="ann", headers={"x-session-id": "s1"}), "salt") == "header:X-Session-Id=s1"
    assert keys.key_of(facts("r2", user="ann"), "salt") == "user=ann"
    assert keys.key_of(facts("r3"), "salt") == "request_id=r3"
    assert AssignmentKeys(("user",)).key_of(facts("r4"), "salt") == "request_id=r4"


def test_a_key_shared_by_a_large_part_of_the_traffic_is_passed_over_for_good_and_others_are_untouched() -> None:
    keys = AssignmentKeys(("user", "request_id"))
    seen = {"product": [], "normal": []}  # type: ignore[var-annotated]
    for i in range(1200):
        user = "product" if i % 2 else f"user-{i % 100}"
        seen["product" if i % 2 else "normal"].append(keys.key_of(facts(f"r{i}", user=user), "salt"))
    assert set(seen["product"][150:]) == {f"request_id=r{i}" for i in range(301, 1200, 2)}
    assert all(key.startswith("user=user-") for key in seen["normal"])
    for i in range(2000):
        keys.key_of(facts(f"q{i}", user=f"user-{i % 100}"), "salt")
    assert keys.key_of(facts("later", user="product"), "salt") == "request_id=later"
    assert keys.key_of(facts("later", user="product"), "another salt") == "user=product"


def test_a_quiet_fleet_marks_no_key_as_heavy() -> None:
    keys = AssignmentKeys(("user",))
    assert {keys.key_of(facts(f"r{i}", user="only"), "salt") for i in range(199)} == {"user=only"}


def test_everything_is_on_stable_until_the_controller_has_spoken() -> None:
    current = CurrentSplit("baseline")
    assert current.split == Split(0, "baseline")
    current.adopt(split(5), knows_of_trips=True)
    assert current.split.canary_percent == 5
    current.adopt(Split(1, "baseline"), knows_of_trips=True)
    assert current.split.canary_percent == 5, "an older or equal version changes nothing"


def test_a_trip_holds_the_canary_at_0_until_a_newer_split_that_knows_of_it() -> None:
    current = CurrentSplit("baseline")
    current.adopt(split(50), knows_of_trips=True)
    assert not current.trip("baseline")
    assert current.trip("speculative")
    assert not current.trip("speculative")
    assert current.split.canary_percent == 0
    current.adopt(Split(2, "baseline", "speculative", 100, "s"), knows_of_trips=False)
    assert (current.version, current.split.canary_percent) == (2, 0)
    current.adopt(Split(3, "baseline", "speculative", 5, "s"), knows_of_trips=True)
    assert current.split.canary_percent == 5


def test_a_user_is_new_once_in_a_rollout_and_a_request_without_one_always() -> None:
    keys = AssignmentKeys(("user", "request_id"))
    split = Split(1, "baseline", "speculative", 30.0, salt="s")

    def is_new(request: str, user: str | None = None) -> bool:
        return choose_path(split, facts(request, user=user), keys, {"baseline", "speculative"}).is_newcomer

    assert [is_new("r1", "ann"), is_new("r2", "ann"), is_new("r3", "bob")] == [True, False, True]
    assert [is_new("r4"), is_new("r5")] == [True, True]
    split = replace(split, salt="another")
    assert is_new("r6", "ann")


def test_the_control_is_a_sample_of_stables_users_as_large_as_the_canary() -> None:
    keys = AssignmentKeys(("user",))
    paths = {"baseline", "speculative"}
    for percent, expected in ((10.0, 0.10), (50.0, 0.25), (0.0, 0.0)):
        split = Split(1, "baseline", "speculative", percent, salt="s")
        found = [choose_path(split, facts(f"r{n}", user=f"u{n}"), keys, paths) for n in range(4000)]
        assert sum(item.is_control for item in found) / 4000 == pytest.approx(expected, abs=0.02)
        assert all(item.path == "baseline" for item in found if item.is_control)


CELLS = (
    WinningCell(SamplingMode.GREEDY, above=0, up_to=4, draft_length=3),
    WinningCell(SamplingMode.GREEDY, above=4, up_to=8),
    WinningCell(SamplingMode.SAMPLED, above=0, up_to=1, draft_length=1),
)


@pytest.mark.parametrize(
    ("is_greedy", "already_open", "expected"),
    [
        (True, 0, ("speculative", True, 3)),
        (True, 3, ("speculative", True, 3)),
        (True, 4, ("speculative", True, None)),
        (True, 8, ("baseline", False, None)),
        (False, 0, ("speculative", True, 1)),
        (False, 1, ("baseline", False, None)),
    ],
)
def test_where_it_wins_a_request_speculates_with_the_draft_length_of_its_cell(
    is_greedy: bool, already_open: int, expected: tuple[str, bool, int | None]
) -> None:
    rule = split(100, eligible=Eligibility(cells=CELLS))
    choice = choose_path(rule, facts(is_greedy=is_greedy), AssignmentKeys(("user",)), PATHS, already_open)
    assert (choice.path, choice.is_compared, choice.draft_length) == expected
    assert choice.is_typical


@given(st.booleans(), st.integers(0, 20), st.text(min_size=1, max_size=5))
def test_being_eligible_does_not_depend_on_the_arm(is_greedy: bool, already_open: int, user: str) -> None:
    rule = Eligibility(cells=CELLS)
    asked = facts(user=user, is_greedy=is_greedy)
    arms = [
        choose_path(split(percent, eligible=rule), asked, AssignmentKeys(("user",)), PATHS, already_open)
        for percent in (0, 100)
    ]
    assert arms[0].is_compared == arms[1].is_compared == is_eligible(asked, rule, already_open)


def test_evidence_that_wins_nowhere_makes_nobody_eligible() -> None:
    assert not is_eligible(facts(), Eligibility(cells=()))
    assert is_eligible(facts(), Eligibility(cells=None))

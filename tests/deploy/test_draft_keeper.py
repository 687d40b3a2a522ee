"""A draft that dies is restarted with growing pauses; one that hangs is noticed by its target's silence about it."""

from __future__ import annotations

from typing import Any

import pytest

# Ray's own modules use what pydantic has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")


@pytest.fixture
def draft_keeper() -> Any:
    from deploy import draft_keeper  # imported here so that the mark covers Ray's warnings

    return draft_keeper


def test_pauses_between_restarts_double_up_to_half_a_minute(draft_keeper: Any) -> None:
    pauses = [draft_keeper.restart_delay(failures) for failures in range(1, 9)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert draft_keeper.restart_delay(10**6) == 30


def test_the_drafts_machine_is_a_part_of_what_was_measured_and_before_it_is_known_nothing_is(draft_keeper: Any) -> None:
    parts = {"hardware.cpu": "of the target", "engine.max_num_seqs": "16"}
    assert draft_keeper.with_draft(parts, None) == {}
    assert draft_keeper.with_draft(parts, {"hardware.cpu": "of the draft"}) == {
        **parts,
        "draft.hardware.cpu": "of the draft",
    }


def test_a_draft_that_still_loads_is_not_gone(draft_keeper: Any) -> None:
    presence = draft_keeper.DraftPresence()
    assert not any(presence.is_gone("lost", now) for now in range(0, 600, 10))


def test_a_draft_that_joined_and_stays_lost_is_gone_after_a_while(draft_keeper: Any) -> None:
    presence = draft_keeper.DraftPresence()
    assert not presence.is_gone("healthy", 100.0)
    assert not presence.is_gone("lost", 101.0)
    assert not presence.is_gone("lost", 115.9)
    assert presence.is_gone("lost", 116.0)


def test_a_draft_that_comes_back_in_time_starts_afresh(draft_keeper: Any) -> None:
    presence = draft_keeper.DraftPresence()
    for now, health in ((0.0, "healthy"), (1.0, "lost"), (14.0, "degraded"), (15.0, "lost"), (29.0, "lost")):
        assert not presence.is_gone(health, now)


def test_a_slow_draft_is_never_taken_for_a_dead_one(draft_keeper: Any) -> None:
    presence = draft_keeper.DraftPresence()
    presence.is_gone("healthy", 0.0)
    assert not any(presence.is_gone("degraded", now) for now in range(0, 600, 10))

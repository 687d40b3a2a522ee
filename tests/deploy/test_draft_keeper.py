"""A draft that dies is restarted with growing pauses; one that hangs is noticed by its target's silence about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.oom_kills import OomCounter
from fleet.config import DraftResources

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


class Remote:
    """A method of an actor; it answers, or fails as Ray fails."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def remote(self, *_: Any) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class Draft:
    """A draft worker's process that ends."""

    def __init__(self, oom_scope: str, end: Exception | None) -> None:
        self.pid, self.oom_scope, self.hardware = Remote(42), Remote(oom_scope), Remote({"hardware.cpu": "x"})
        self.run = Remote(end)


def actor_death() -> Exception:
    from ray.exceptions import RayActorError

    return RayActorError()


def task_failure() -> Exception:
    from ray.exceptions import RayTaskError

    return RayTaskError("run", "", ValueError("no such model"))


@pytest.mark.parametrize(
    ("scope", "end", "kills", "counted"),
    [
        ("host", actor_death, 1, 1),
        ("host", actor_death, 0, 0),
        ("another host", actor_death, 1, 0),
        ("", actor_death, 1, 0),
        ("host", task_failure, 1, 0),
        ("host", lambda: None, 1, 0),
    ],
    ids=["killed", "died of something else", "died elsewhere", "where nothing is counted", "failed", "ended well"],
)
async def test_a_draft_that_dies_while_the_kernel_kills_where_it_runs_was_killed(
    draft_keeper: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scope: str,
    end: Any,
    kills: int,
    counted: int,
) -> None:
    counter = OomCounter("host", tmp_path / "vmstat")
    counter.file.write_text("oom_kill 7\n")
    keeper = draft_keeper.DraftKeeper(object(), DraftResources(), counter)
    monkeypatch.setattr(keeper, "_create", lambda: Draft(scope, end()))
    monkeypatch.setattr(draft_keeper.ray, "kill", lambda actor: None)
    keeper.observe("healthy")
    counter.file.write_text(f"oom_kill {7 + kills}\n")
    await keeper._run_once()
    assert (keeper.killed, keeper.pid) == (counted, None)
    await keeper._run_once()
    assert keeper.killed == 2 * counted, "every death counts, as long as the kill is recent"

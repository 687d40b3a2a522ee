"""What a replica tells the controller beyond what its worker knows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.oom_kills import OomCounter
from tests.canary.world import replica

# Ray's own modules use what pydantic has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")

PARTS = {"hardware.cpu": "of the target"}


@pytest.fixture
def completed() -> Any:
    from deploy.path_replica import completed  # imported here so that the mark covers Ray's warnings

    return completed


def test_a_report_says_how_often_the_kernel_has_killed_and_among_whom(completed: Any, tmp_path: Path) -> None:
    counter = OomCounter("b00t/7", tmp_path / "memory.events")
    counter.file.write_text("oom 5\noom_kill 3\n")
    report = completed(replica("speculative", "a"), PARTS, None, counter)
    assert (report.oom_scope, report.oom_kills) == ("b00t/7", 3)
    counter.file.write_text("oom 6\noom_kill 4\n")
    assert completed(report, PARTS, None, counter).oom_kills == 4


def test_where_the_kernel_does_not_count_nothing_is_said_of_it(completed: Any) -> None:
    report = completed(replica("speculative", "a"), PARTS, None, None)
    assert (report.oom_scope, report.oom_kills) == ("", 0)
    assert report.fingerprint == (("hardware.cpu", "of the target"),)


def test_a_killed_draft_counts_as_one_more_failure_of_its_replica(completed: Any) -> None:
    draft = SimpleNamespace(pid=42, killed=2, hardware={"hardware.cpu": "of the draft"})
    report = completed(replica("speculative", "a", out_of_memory=1), PARTS, draft, None)
    assert (report.out_of_memory, report.draft_pid) == (3, 42)
    assert dict(report.fingerprint) == {**PARTS, "draft.hardware.cpu": "of the draft"}


def test_before_the_drafts_machine_is_known_there_is_no_fingerprint(completed: Any) -> None:
    draft = SimpleNamespace(pid=None, killed=0, hardware=None)
    assert completed(replica("speculative", "a"), PARTS, draft, None).fingerprint == ()

"""A leak is told and named, a clean run is not accused, and a load that was too tame does not pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deploy.bench.growth import Reading
from deploy.bench.soak.held import NOTHING, Held
from deploy.bench.soak.outcome import Soaked
from deploy.bench.soak.report import Row, problems, tables

READINGS = tuple(Reading(24 * turn, {"Engine._sequences": 0}, 800 * 2**20, 40) for turn in range(1, 10))
CLEAN = Soaked(READINGS, {"answered": 160, "left": 50, "BadRequest": 6}, 30, 9, 4000, NOTHING)


def row(**changes: object) -> Row:
    return Row("draft_model", True, replace(CLEAN, **changes))  # type: ignore[arg-type]


def test_a_clean_run_is_not_accused() -> None:
    assert problems(row()) == []
    lines = list(tables([row(), replace(row(), name="ngram", has_draft=False)], 15.2))
    assert lines[0] == ("432 requests in 15 minutes, start-up included: as many as an hour brings at 0.12 requests/s.")
    draft, ngram = lines[4:6]
    assert draft == (
        "| draft_model | 9 | 216 | 50 | 30 | 9 | 4000 | 0 / 0 / 0 / 0 | 800 → 800 | +0.0 (+0.0 – +0.0) | no leak |"
    )
    assert ngram.split(" | ")[5] == "–"
    assert lines[-2] == "Nothing was held after any turn, and no growth was shown."


def test_a_single_block_that_stays_taken_is_told_with_what_was_held() -> None:
    found = row(left=Held(0, 64, 0, 0), readings=READINGS[:1])
    assert problems(found) == ["still held at rest, as slots / KV tokens / streams / drafts: 0 / 64 / 0 / 0"]
    lines = list(tables([found], 15))
    assert "0 / 64 / 0 / 0 | – | – | **see below** |" in lines[4]
    assert lines[-2].startswith("- draft_model: still held at rest")


def test_memory_that_every_request_leaves_behind_is_told() -> None:
    leaking = tuple(replace(each, memory_bytes=each.memory_bytes + each.requests * 2**17) for each in READINGS)
    found = row(readings=leaking)
    assert problems(found) == ["memory rises by 125 MiB in 1,000 requests (125 – 125)"]
    assert "+125.0 (+125.0 – +125.0) | **see below** |" in list(tables([found], 15))[4]


def test_what_the_memory_does_not_tell_is_said() -> None:
    wobble = (0, 9, 3, 12, 1, 8, 2, 11, 5)
    noisy = tuple(
        replace(each, memory_bytes=each.memory_bytes + mib * 2**20) for each, mib in zip(READINGS, wobble, strict=True)
    )
    assert problems(row(readings=noisy)) == []
    assert "| no leak above " in list(tables([row(readings=noisy)], 15))[4]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"outcomes": {"answered": 160, "left": 50, "ReplicaLost": 2}}, "2 requests ended in ReplicaLost"),
        ({"outcomes": {"answered": 160}}, "no client left"),
        ({"preemptions": 0}, "nothing was preempted"),
        ({"drafted": 0}, "nothing was drafted"),
        ({"restarts": 0}, "the draft was not restarted"),
    ],
)
def test_what_failed_or_never_happened_is_no_proof_of_anything(changes: dict[str, object], problem: str) -> None:
    assert problems(row(**changes)) == [problem]


def test_only_a_draft_worker_has_to_be_restarted() -> None:
    assert problems(replace(row(restarts=0), has_draft=False)) == []

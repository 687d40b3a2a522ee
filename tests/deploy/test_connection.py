"""What a fleet is, is asked until its replicas have told it, and not for ever."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.connection import SETTLE_SECONDS, fingerprints_in, settled_status


class Fleet:
    """A fleet whose speculative replica tells what it is at the given look."""

    def __init__(self, tells_at: int, ready: int = 1) -> None:
        self.looks = 0
        self._tells_at = tells_at
        self._ready = ready

    def status(self) -> Any:
        self.looks += 1
        parts = {"engine.max_num_seqs": "16"} if self.looks >= self._tells_at else {}
        return {
            "paths": [
                {"path": "baseline", "replicas_ready": 1, "fingerprint": {"engine.max_num_seqs": "16"}},
                {"path": "speculative", "replicas_ready": self._ready, "fingerprint": parts},
            ]
        }


@pytest.mark.parametrize(
    ("fleet", "paths", "looks", "known"),
    [
        (Fleet(tells_at=1), ["baseline", "speculative"], 1, {"baseline", "speculative"}),
        (Fleet(tells_at=4), ["baseline", "speculative"], 4, {"baseline", "speculative"}),
        (Fleet(tells_at=4), ["baseline"], 1, {"baseline"}),
        (Fleet(tells_at=9, ready=0), ["baseline", "speculative"], 1, {"baseline"}),
        (Fleet(tells_at=10**9), ["speculative"], SETTLE_SECONDS + 1, {"baseline"}),
    ],
)
def test_replicas_that_have_not_yet_told_what_they_are_are_waited_for(
    fleet: Any, paths: list[str], looks: int, known: set[str]
) -> None:
    slept: list[float] = []
    status = settled_status(fleet, paths, slept.append)
    assert set(fingerprints_in(status)) == known
    assert fleet.looks == looks
    assert len(slept) == min(looks, SETTLE_SECONDS) - 1

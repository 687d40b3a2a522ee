"""What is known of one proposer after its soak?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deploy.bench.growth import Reading
from deploy.bench.soak.held import Held


@dataclass(frozen=True, slots=True)
class Soaked:
    """What became of one proposer's requests, and one reading at rest for every turn."""

    readings: tuple[Reading, ...]
    outcomes: Mapping[str, int]
    """Requests by what became of them: "answered", "left", or the error's name."""
    preemptions: int
    restarts: int
    drafted: int
    left: Held
    """At the end, or when the soak gave up waiting for rest."""

    @property
    def requests(self) -> int:
        return sum(self.outcomes.values())

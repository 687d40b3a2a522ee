"""Did a path just fail so hard that no statistics are needed? Out of memory, or a crash loop."""

from __future__ import annotations

from collections import deque

from fleet.errors import FleetError, OutOfMemory, ReplicaLost
from fleet.traffic import CRASH_LOOP_REPLICAS, CRASH_LOOP_SECONDS, HardTrip, HardTripKind


class TripWire:
    """Watches the failures of all paths; the rule for a crash loop is 3 distinct replicas lost within 120 s."""

    def __init__(self) -> None:
        self._losses: dict[str, deque[tuple[float, str]]] = {}

    def check(self, path: str, error: FleetError, now: float) -> HardTrip | None:
        """The trip that this failure amounts to, if any."""
        if isinstance(error, OutOfMemory):
            return HardTrip(path, HardTripKind.OOM, str(error))
        if not isinstance(error, ReplicaLost) or error.replica is None:
            return None
        losses = self._losses.setdefault(path, deque())
        while losses and now - losses[0][0] > CRASH_LOOP_SECONDS:
            losses.popleft()
        if all(replica != error.replica for _, replica in losses):
            losses.append((now, error.replica))
        if len(losses) < CRASH_LOOP_REPLICAS:
            return None
        names = ", ".join(replica for _, replica in losses)
        losses.clear()
        return HardTrip(path, HardTripKind.CRASH_LOOP, f"lost {names} within {CRASH_LOOP_SECONDS:.0f} s; last: {error}")

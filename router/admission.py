"""May a request start now, wait, or must it be turned away? Bounded streams, a bounded FIFO queue."""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum

FIRST_GUESS_SECONDS = 1.0
"""How long a request is taken to hold its streams before any has ended."""
SMOOTHING = 0.1
"""Weight of the newest holding time in their moving average."""


class Admission(StrEnum):
    """What happens to an arriving request."""

    ADMITTED = "admitted"
    QUEUED = "queued"
    REFUSED = "refused"


class AdmissionQueue:
    """Streams open and requests waiting, both derived from sets of ids, so that nothing can be counted twice.

    A request takes as many streams as it has choices, and all at once; one larger than the limit takes all of them.
    Whoever waits is admitted in order of arrival: nobody overtakes, so a large request cannot starve.
    """

    def __init__(self, max_in_flight: int, max_queued: int) -> None:
        self._max_in_flight = max_in_flight
        self._max_queued = max_queued
        self._running: dict[str, tuple[int, float]] = {}
        """Request -> (streams, admitted at)."""
        self._waiting: OrderedDict[str, int] = OrderedDict()
        self._mean_hold_seconds = FIRST_GUESS_SECONDS

    @property
    def in_flight(self) -> int:
        return sum(streams for streams, _ in self._running.values())

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def arrive(self, request_id: str, streams: int, now: float) -> Admission:
        """Take in a request of `streams` ≥ 1; its id must be new."""
        streams = min(streams, self._max_in_flight)
        if not self._waiting and self._fits(streams):
            self._running[request_id] = (streams, now)
            return Admission.ADMITTED
        if len(self._waiting) >= self._max_queued:
            return Admission.REFUSED
        self._waiting[request_id] = streams
        return Admission.QUEUED

    def leave(self, request_id: str, now: float) -> list[str]:
        """A request ended or gave up waiting; the ids that are admitted in its place. Unknown ids change nothing."""
        self._waiting.pop(request_id, None)
        held = self._running.pop(request_id, None)
        if held is not None:
            self._mean_hold_seconds += SMOOTHING * (now - held[1] - self._mean_hold_seconds)
        admitted = []
        while self._waiting:
            first, streams = next(iter(self._waiting.items()))
            if not self._fits(streams):
                break
            del self._waiting[first]
            self._running[first] = (streams, now)
            admitted.append(first)
        return admitted

    def retry_after_seconds(self) -> float:
        """When a place is likely: the queue ahead, at the rate at which streams come free; 1 to 60 s."""
        ahead = sum(self._waiting.values()) + 1
        return min(60.0, max(1.0, self._mean_hold_seconds * ahead / self._max_in_flight))

    def _fits(self, streams: int) -> bool:
        return self.in_flight + streams <= self._max_in_flight

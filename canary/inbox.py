"""Which routers' reports are new? Each counts exactly once, however often it is sent."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.traffic import RouterReport


class Inbox:
    """Reports on their way into the journal.

    A router numbers its reports and sends each again, unchanged, until it is acknowledged; a report is
    acknowledged once it is committed. Reports are taken in a router's own order without gaps, as an
    acknowledgement covers everything up to its number; of an unknown router the lowest one begins.
    """

    def __init__(self, committed: Mapping[str, int]) -> None:
        self._committed = dict(committed)
        self._taken = dict(committed)
        self._waiting: dict[str, dict[int, RouterReport]] = {}

    def offer(self, report: RouterReport) -> None:
        if report.sequence > self._taken.get(report.router_id, 0):
            self._waiting.setdefault(report.router_id, {})[report.sequence] = report

    def take(self) -> list[RouterReport]:
        """Everything that is next in its router's order; never the same report twice."""
        found = []
        for router, waiting in self._waiting.items():
            following = self._taken.get(router, min(waiting, default=0) - 1) + 1
            while following in waiting:
                found.append(waiting.pop(following))
                self._taken[router] = following
                following += 1
        self._waiting = {router: waiting for router, waiting in self._waiting.items() if waiting}
        return found

    def commit(self) -> None:
        """What was taken is on disk now."""
        self._committed = dict(self._taken)

    def acknowledged(self, router_id: str) -> int:
        """Up to which report everything of a router is on disk."""
        return self._committed.get(router_id, 0)

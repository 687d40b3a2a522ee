"""Which routers' reports are new? Each counts exactly once, however often it is sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fleet.traffic import RouterReport

REMEMBERED = 1000
"""Routers that are gone and whose last report is still known, so that one that comes back counts nothing twice."""


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
                self._taken.pop(router, None)
                self._taken[router] = following
                following += 1
        self._waiting = {router: waiting for router, waiting in self._waiting.items() if waiting}
        return found

    def commit(self) -> None:
        """What was taken is on disk now."""
        self._committed = dict(self._taken)

    def forget(self, living: Collection[str]) -> list[str]:
        """Drop routers that are gone, the longest silent first, until `REMEMBERED` of them are left; which ones.

        To be called when everything taken is committed.
        """
        gone = [router for router in self._taken if router not in living]
        dropped = gone[: max(0, len(gone) - REMEMBERED)]
        for router in dropped:
            del self._taken[router]
            self._waiting.pop(router, None)
        if dropped:
            self.commit()
        return dropped

    def acknowledged(self, router_id: str) -> int:
        """Up to which report everything of a router is on disk."""
        return self._committed.get(router_id, 0)

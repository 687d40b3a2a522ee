"""Where does everything stand? The rollout and the split, ahead of the disk by at most what is still to be written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from canary.calibrated import Calibrated, with_newest
from canary.events import BY_CONTROLLER, Event, OperatorAborted, RolloutStarted, SetSplit
from canary.history import tell
from canary.journal import Entry, Journal
from canary.memory import NAMES, Memory
from canary.notices import Notice, notice_of
from canary.rollout import advance
from canary.rollout_state import Rollout, State, begin, split_of
from canary.windows import OpenWindow
from fleet.clock import Clock
from fleet.traffic import Eligibility, PathTally, RouterReport, Split


@dataclass(frozen=True, slots=True)
class Dates:
    """When the rollout began and ended, in seconds since the Unix epoch, and the plan it was given."""

    started_at: float
    ended_at: float | None
    plan: Mapping[str, Any]


class Desk:
    """Applies events in memory and writes them to the journal; `split` is what the journal already holds.

    Journal first, act second: nobody outside sees a decision before it is durable. A commit that the
    disk refuses loses nothing, the next one writes everything that is still to be written. It is also the
    notifier's outbox.
    """

    def __init__(self, journal: Journal, memory: Memory, clock: Clock) -> None:
        self.memory = memory
        self.rollout: Rollout | None = None
        self.dates: Dates | None = None
        self._journal = journal
        self._clock = clock
        self._last_read = clock.monotonic()
        self._split = memory.split
        self._unwritten: list[Entry] = []
        self._changed: set[str] = set()

    @classmethod
    def open(cls, journal: Journal, stable: str, clock: Clock) -> Desk:
        """As the journal left it; a new journal starts with everything on `stable`."""
        values = journal.values()
        if not values:
            desk = cls(journal, Memory(Split(1, stable), stable), clock)
            desk.touch(NAMES)
            desk.commit()
            return desk
        desk = cls(journal, Memory.recall(values), clock)
        ids = journal.chronicle.rollout_ids()
        if ids:
            desk.rollout = journal.replay(ids[-1])
            desk.dates = Dates(*journal.chronicle.dates(ids[-1]))
        return desk

    @property
    def split(self) -> Split:
        """What routers may be told."""
        return self._split

    def now(self) -> float:
        """Seconds on the rollout's clock, which stands still while no controller runs."""
        reading = self._clock.monotonic()
        self.memory.clock_seconds += max(0.0, reading - self._last_read)
        self._last_read = reading
        return self.memory.clock_seconds

    def wall(self) -> float:
        """Seconds since the Unix epoch."""
        return self._clock.wall()

    def touch(self, names: Collection[str]) -> None:
        """These named values have changed and go into the next commit."""
        self._changed.update(names)

    def enrol(self, webhooks: Collection[str]) -> None:
        """These webhooks are to be told: a new one from now on, an old one from where it was."""
        told = {name: self.memory.notified.get(name, self._journal.last_event) for name in webhooks}
        if told != self.memory.notified:
            self.memory.notified = told
            self.touch(["notified"])

    @property
    def last_notice(self) -> int:
        return self._journal.last_notice

    def notices(self, after: int, limit: int) -> list[tuple[int, Notice]]:
        return self._journal.notices(after, limit)

    def told(self, webhook: str) -> int:
        return self.memory.notified[webhook]

    def note_told(self, webhook: str, number: int) -> None:
        self.memory.notified[webhook] = number
        self.touch(["notified"])

    def note_failure(self, webhook: str) -> None:
        failures = self.memory.webhook_failures
        failures[webhook] = failures.get(webhook, 0) + 1
        self.touch(["counters"])

    def keep_calibration(self, newest: Calibrated) -> None:
        self.memory.calibrations = with_newest(self.memory.calibrations, newest)
        self.touch(["calibrations"])

    def start(self, event: RolloutStarted) -> Rollout:
        """Begin a rollout in place of the last one, which must be over."""
        rollout = begin(event)
        wall = self._clock.wall()
        self._note(None, event, rollout, wall)
        self.dates = Dates(wall, None, event.plan)
        self._adopt(rollout)
        self._route(split_of(rollout))
        self.open_window(event.at)
        return rollout

    def apply(self, event: Event) -> None:
        """Advance the rollout by one event. Raises InvalidTransition, having changed nothing."""
        if self.rollout is None:
            return
        before = self.rollout
        after, orders = advance(before, event)
        if after is before:
            return
        wall = self._clock.wall()
        self._note(before, event, after, wall)
        if self.dates is not None and after.state != before.state:
            self.dates = replace(self.dates, ended_at=wall if after.is_over else None)
        if after.state == State.ROLLED_BACK and before.state != State.ROLLED_BACK:
            guardrail = after.reason.partition(":")[0]
            self.memory.trips[guardrail] = self.memory.trips.get(guardrail, 0) + 1
            self.touch(["counters"])
        self._adopt(after)
        for order in orders:
            self._route(order)

    def _note(self, before: Rollout | None, event: RolloutStarted | Event, after: Rollout, wall: float) -> None:
        summary = tell(before, event, after)
        self._unwritten.append(Entry(wall, event, after, summary, notice_of(before, after, summary, wall)))

    def _adopt(self, rollout: Rollout) -> None:
        self.rollout = rollout
        has_moved = rollout.state == State.PROMOTED and not rollout.plan.is_partial
        self.memory.stable = rollout.plan.canary if has_moved else rollout.plan.stable
        self.touch(["split"])

    def _route(self, wanted: SetSplit) -> None:
        """Carry out the order, under a new version if it is news."""
        memory, present = self.memory, self.memory.split
        if (present.stable, present.canary, present.canary_percent) == (wanted.stable, wanted.canary, wanted.percent):
            return
        salt, eligible = "", Eligibility()
        if wanted.canary is not None and self.rollout is not None:
            salt, eligible = self.rollout.id, self.rollout.plan.eligibility()
        memory.split = Split(present.version + 1, wanted.stable, wanted.canary, wanted.percent, salt, eligible)
        memory.split_at = memory.clock_seconds
        self.touch(["split"])

    def open_window(self, at: float) -> None:
        """Start to fill a new window, at the weight of now."""
        percent = self.memory.split.canary_percent if self.memory.split.canary else 0.0
        self.memory.window = OpenWindow(at, percent)
        self.touch(["window"])

    def count(self, report: RouterReport) -> None:
        """Add a router's deltas to the open window and to the counters, and remember its number."""
        self.memory.sequences.pop(report.router_id, None)
        self.memory.sequences[report.router_id] = report.sequence
        self.touch(["sequences"])
        if self.memory.window is not None and (report.compared or report.served):
            self.memory.window.add(report)
            self.touch(["window"])
        for path, tally in report.served.items():
            self.memory.served.setdefault(path, PathTally()).merge(tally)
            self.touch(["served"])

    def forget(self, routers: Collection[str]) -> None:
        """These routers will not report again."""
        for router in routers:
            del self.memory.sequences[router]
            self.touch(["sequences"])

    def abandon_lost_paths(self, paths: Collection[str], stable: str) -> None:
        """The config may have changed while no controller ran: never route to a path that is gone."""
        if self.rollout is not None and not self.rollout.is_final:
            missing = {self.rollout.plan.stable, self.rollout.plan.canary} - set(paths)
            if missing and self.rollout.is_judged:
                reason = f"path '{min(missing)}' is no longer configured"
                self.apply(OperatorAborted(self.now(), reason, BY_CONTROLLER))
        if self.memory.stable not in paths or self.memory.split.stable not in paths:
            self.memory.stable = stable
            self._route(SetSplit(stable, None, 0.0))

    def commit(self) -> None:
        """Make everything durable, then let it be seen. Raises Unavailable or JournalTaken; safe to repeat."""
        if not self._unwritten and not self._changed and not self._is_timed:
            return
        self._journal.commit(self._unwritten, self.memory.values(self._changed | {"clock"}))
        self._unwritten, self._changed = [], set()
        self._split = self.memory.split

    @property
    def _is_timed(self) -> bool:
        """Whether the mere passing of time must survive: a bake clock or a hold is running."""
        return self.rollout is not None and self.rollout.is_judged

"""What has been decided, and on what grounds? An append-only record on disk that replays to the same rollout."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter

from canary import event_json, snapshot
from canary.chronicle import Chronicle
from canary.events import Event, RolloutStarted
from canary.notices import Notice
from canary.rollout import advance
from canary.rollout_state import Rollout, begin
from canary.store import EVENTS, NOTICES, SNAPSHOTS, STATE, Store
from fleet.errors import ConfigError, FleetError

SNAPSHOT_EVENTS = 256
"""A replay takes about 3 ms an event, and watching a holdback adds one event per window for weeks."""
_PRIVATE = ("owner", "format")
_NOTICE = TypeAdapter(Notice)


class JournalTaken(FleetError):
    """Another controller has opened the journal since; this one must stop."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One event and where it led."""

    at: float
    """Seconds since the Unix epoch, for people; nothing is computed from it."""
    event: RolloutStarted | Event
    after: Rollout
    summary: str
    notice: Notice | None = None
    """What webhooks are to be told of it."""


class Journal:
    """What `commit` has returned from survives a kill -9 and a power cut; see `canary.store`.

    Beside the events lie a few named values that are overwritten (clock, open window, counters); events
    and values of one commit become durable together. Whoever opened the journal last owns it.
    """

    def __init__(self, store: Store) -> None:
        self.chronicle = Chronicle(store)
        self._store = store
        self._owner = uuid.uuid4().hex
        with store.transaction() as connection:
            _overwrite(connection, {"owner": self._owner})
            self._last_event = int(connection.execute(_LAST_EVENT).scalar_one())
            self._last_notice = int(connection.execute(sa.select(sa.func.max(NOTICES.c.id))).scalar() or 0)

    @classmethod
    def open(cls, place: str | Path) -> Journal:
        """Open or create, by path or postgresql:// URL; ConfigError in one line where that is impossible."""
        return cls(Store.open(str(place)))

    def close(self) -> None:
        self._store.close()

    @property
    def place(self) -> str:
        """Path, or URL without its password."""
        return self._store.place

    @property
    def last_event(self) -> int:
        """Number of the newest event, 0 before the first."""
        return self._last_event

    @property
    def last_notice(self) -> int:
        """Number of the newest event that webhooks are told of, 0 before the first."""
        return self._last_notice

    def commit(self, entries: Sequence[Entry], values: Mapping[str, Any]) -> None:
        """Make entries and JSON-ready values durable, all or nothing.

        Raises JournalTaken when another controller owns the journal by now, Unavailable when the disk or
        the database refuses: then call again with the same entries, and more after them if there are.
        """
        with self._store.transaction() as connection:
            last = self._write(connection, entries, values)
        self._last_event, known = last, self._last_event
        told = [number for number, entry in enumerate(entries, start=known + 1) if entry.notice]
        self._last_notice = max(told, default=self._last_notice)

    def _write(self, connection: sa.Connection, entries: Sequence[Entry], values: Mapping[str, Any]) -> int:
        if connection.execute(_OWNER).scalar() != self._owner:
            raise JournalTaken("another controller has taken over the journal")
        last = int(connection.execute(_LAST_EVENT).scalar_one())
        # A connection lost in COMMIT leaves open what became of it: what is already there is ours, from that try.
        fresh = list(enumerate(entries, start=self._last_event + 1))[last - self._last_event :]
        if fresh:
            connection.execute(EVENTS.insert(), [_row(number, entry) for number, entry in fresh])
            last = fresh[-1][0]
        notices = [{"id": n, "body": _NOTICE.dump_json(e.notice).decode()} for n, e in fresh if e.notice is not None]
        if notices:
            connection.execute(NOTICES.insert(), notices)
        if fresh and last // SNAPSHOT_EVENTS != (fresh[0][0] - 1) // SNAPSHOT_EVENTS:
            _keep_snapshot(connection, last, fresh[-1][1].after)
        _overwrite(connection, values)
        return last

    def values(self) -> dict[str, Any]:
        """The named values of the last commit."""
        query = sa.select(STATE.c.name, STATE.c.value).where(STATE.c.name.not_in(_PRIVATE))
        with self._store.transaction() as connection:
            return {name: json.loads(value) for name, value in connection.execute(query)}

    def replay(self, rollout_id: str) -> Rollout:
        """The rollout after all its events, bit for bit as it was when the last of them was committed."""
        of_rollout = EVENTS.c.rollout == rollout_id
        query = sa.select(EVENTS.c.kind, EVENTS.c.body).where(of_rollout).order_by(EVENTS.c.id)
        kept = sa.select(SNAPSHOTS.c.id, SNAPSHOTS.c.body).where(
            SNAPSHOTS.c.rollout == rollout_id, SNAPSHOTS.c.shape == snapshot.SHAPE
        )
        with self._store.transaction() as connection:
            first = connection.execute(query.limit(1)).first()
            if first is None:
                raise ConfigError(f"the journal knows no rollout '{rollout_id}'")
            rollout, since = begin(_started(*first)), 0
            frozen = connection.execute(kept).first()
            if frozen is not None:
                rollout, since = snapshot.thaw(frozen.body, rollout.plan), frozen.id
            later = connection.execution_options(yield_per=SNAPSHOT_EVENTS).execute(query.where(EVENTS.c.id > since))
            for kind, body in later:
                event = event_json.read(kind, body)
                if not isinstance(event, RolloutStarted):
                    rollout, _ = advance(rollout, event)
        return rollout

    def notices(self, after: int, limit: int) -> list[tuple[int, Notice]]:
        """The newest `limit` notices above an event's number, oldest first."""
        query = sa.select(NOTICES.c.id, NOTICES.c.body).where(NOTICES.c.id > after)
        with self._store.transaction() as connection:
            rows = connection.execute(query.order_by(NOTICES.c.id.desc()).limit(limit)).all()
        return [(number, _NOTICE.validate_json(body)) for number, body in reversed(rows)]


# Executed at every commit, so built once: to build them took as long as to write.
_OWNER = sa.select(STATE.c.value).where(STATE.c.name == "owner").with_for_update()
_LAST_EVENT = sa.select(sa.func.coalesce(sa.func.max(EVENTS.c.id), 0))
_OVERWRITE = sa.text(
    "INSERT INTO state (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)


def _started(kind: str, body: str) -> RolloutStarted:
    event = event_json.read(kind, body)
    if not isinstance(event, RolloutStarted):
        raise ConfigError(f"a rollout in the journal begins with {kind}")
    return event


def _keep_snapshot(connection: sa.Connection, number: int, rollout: Rollout) -> None:
    connection.execute(SNAPSHOTS.delete().where(SNAPSHOTS.c.rollout == rollout.id))
    row = {"rollout": rollout.id, "id": number, "shape": snapshot.SHAPE, "body": snapshot.freeze(rollout)}
    connection.execute(SNAPSHOTS.insert(), row)


def _overwrite(connection: sa.Connection, values: Mapping[str, Any]) -> None:
    if not values:
        return
    connection.execute(_OVERWRITE, [{"name": name, "value": _json(name, value)} for name, value in values.items()])


def _json(name: str, value: Any) -> str:
    return str(value) if name in _PRIVATE else json.dumps(value, separators=(",", ":"))


def _row(number: int, entry: Entry) -> dict[str, Any]:
    event, after = entry.event, entry.after
    return {
        "id": number,
        "at": entry.at,
        "rollout": after.id,
        "attempt": after.attempt,
        "kind": event_json.kind_of(event),
        "body": event_json.written(event),
        "state": after.state.value,
        "weight": after.weight,
        "summary": entry.summary,
    }

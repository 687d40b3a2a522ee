"""What has been decided, and on what grounds? An append-only record on disk that replays to the same rollout."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter

from canary.events import Event, RolloutStarted
from canary.rollout import advance
from canary.rollout_state import OVER, Rollout, begin
from canary.status import HistoryEntry, RolloutSummary
from fleet.errors import ConfigError, FleetError, Unavailable

_VERSION = 1
_SCHEMA = """
CREATE TABLE events (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, rollout TEXT NOT NULL, attempt INTEGER NOT NULL, kind TEXT NOT NULL,
    body TEXT NOT NULL, state TEXT NOT NULL, weight REAL NOT NULL, summary TEXT NOT NULL
) STRICT;
CREATE INDEX events_of_rollout ON events (rollout, id);
CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_keep BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
"""
_KINDS: Mapping[str, TypeAdapter[Any]] = {
    kind.__name__: TypeAdapter(kind) for kind in (RolloutStarted, *get_args(Event))
}


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


class Journal:
    """SQLite with WAL and synchronous=FULL: what `commit` has returned from survives a kill -9 and a power cut.

    Beside the events lie a few named values that are overwritten (clock, open window, counters); events
    and values of one commit become durable together. Whoever opened the journal last owns it.
    """

    def __init__(self, connection: sqlite3.Connection, owner: str) -> None:
        self._connection = connection
        self._owner = owner

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open or create; ConfigError in one line where that is impossible."""
        path = path.expanduser()
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            connection = sqlite3.connect(path, isolation_level=None)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            _prepare(connection, path)
            journal = cls(connection, uuid.uuid4().hex)
            journal._take()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"cannot open the journal {path}: {error}") from error
        return journal

    def _take(self) -> None:
        self._connection.execute("INSERT OR REPLACE INTO state VALUES ('owner', ?)", (self._owner,))

    def close(self) -> None:
        self._connection.close()

    def commit(self, entries: Sequence[Entry], values: Mapping[str, Any]) -> None:
        """Make entries and JSON-ready values durable, all or nothing.

        Raises Unavailable when the disk refuses (trying again is safe), JournalTaken when another
        controller owns the journal by now.
        """
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._write(entries, values)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise Unavailable(f"the journal cannot be written: {error}") from error
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _write(self, entries: Sequence[Entry], values: Mapping[str, Any]) -> None:
        if self._value("owner") != self._owner:
            raise JournalTaken("another controller has taken over the journal")
        self._connection.executemany(
            "INSERT INTO events (at, rollout, attempt, kind, body, state, weight, summary) VALUES (?,?,?,?,?,?,?,?)",
            [_row(entry) for entry in entries],
        )
        self._connection.executemany(
            "INSERT OR REPLACE INTO state VALUES (?, ?)",
            [(name, json.dumps(value, separators=(",", ":"))) for name, value in values.items()],
        )

    def values(self) -> dict[str, Any]:
        """The named values of the last commit."""
        with closing(self._connection.execute("SELECT name, value FROM state WHERE name <> 'owner'")) as rows:
            return {name: json.loads(value) for name, value in rows}

    def _value(self, name: str) -> str | None:
        row = self._connection.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def rollout_ids(self) -> list[str]:
        """Every rollout ever started, oldest first."""
        query = "SELECT rollout FROM events WHERE kind = 'RolloutStarted' ORDER BY id"
        return [str(row[0]) for row in self._connection.execute(query)]

    def replay(self, rollout_id: str) -> Rollout:
        """The rollout after all its events, bit for bit as it was when the last of them was committed."""
        rollout: Rollout | None = None
        for event in self.events(rollout_id):
            if isinstance(event, RolloutStarted):
                rollout = begin(event)
            elif rollout is not None:
                rollout, _ = advance(rollout, event)
        if rollout is None:
            raise ConfigError(f"the journal knows no rollout '{rollout_id}'")
        return rollout

    def events(self, rollout_id: str) -> list[RolloutStarted | Event]:
        query = "SELECT kind, body FROM events WHERE rollout = ? ORDER BY id"
        return [_KINDS[kind].validate_json(body) for kind, body in self._connection.execute(query, (rollout_id,))]

    def history(self, rollout_id: str, *, limit: int, windows: bool) -> list[HistoryEntry]:
        """The last `limit` entries of a rollout, oldest first; closed windows only on request."""
        query = f"""
            SELECT id, at, rollout, attempt, kind, state, weight, summary FROM events
            WHERE rollout = ? {"" if windows else "AND (kind <> 'WindowClosed' OR state = 'rolled_back')"}
            ORDER BY id DESC LIMIT ?
        """
        rows = self._connection.execute(query, (rollout_id, limit)).fetchall()
        return [
            HistoryEntry(
                id=row[0],
                at=row[1],
                rollout=row[2],
                attempt=row[3],
                event=row[4],
                state=row[5],
                weight=row[6],
                summary=row[7],
            )
            for row in reversed(rows)
        ]

    def dates(self, rollout_id: str) -> tuple[float, float | None, Mapping[str, Any]]:
        """When a rollout started and when it came to its present end, if it has (wall clock); and its plan."""
        query = "SELECT at, body FROM events WHERE rollout = ? ORDER BY id LIMIT 1"
        at, body = self._connection.execute(query, (rollout_id,)).fetchone()
        plan = dict(_KINDS[RolloutStarted.__name__].validate_json(body).plan)
        last_state = """
            SELECT min(at), state FROM events WHERE rollout = :id AND id > coalesce(
                (SELECT max(id) FROM events WHERE rollout = :id AND state <> (
                    SELECT state FROM events WHERE rollout = :id ORDER BY id DESC LIMIT 1)), 0)
        """
        since, state = self._connection.execute(last_state, {"id": rollout_id}).fetchone()
        return float(at), float(since) if state in OVER else None, plan

    def summaries(self) -> list[RolloutSummary]:
        """Every rollout as its last event left it, oldest first."""
        found = []
        for rollout_id in self.rollout_ids():
            started_at, ended_at, plan = self.dates(rollout_id)
            query = "SELECT attempt, state, weight FROM events WHERE rollout = ? ORDER BY id DESC LIMIT 1"
            attempt, state, weight = self._connection.execute(query, (rollout_id,)).fetchone()
            reason = "SELECT summary FROM events WHERE rollout = ? AND kind <> 'SplitApplied' ORDER BY id DESC LIMIT 1"
            found.append(
                RolloutSummary(
                    id=rollout_id,
                    canary=str(plan["canary"]),
                    state=state,
                    attempt=attempt,
                    weight=weight,
                    reason=self._connection.execute(reason, (rollout_id,)).fetchone()[0],
                    started_at=started_at,
                    ended_at=ended_at,
                )
            )
        return found


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
    elif version != _VERSION:
        raise ConfigError(f"the journal {path} has format {version}; this version writes format {_VERSION}")


def _row(entry: Entry) -> tuple[Any, ...]:
    kind, after = type(entry.event).__name__, entry.after
    body = _KINDS[kind].dump_json(entry.event).decode()
    return (entry.at, after.id, after.attempt, kind, body, after.state.value, after.weight, entry.summary)

"""Where does the journal lie? Its tables, in SQLite or PostgreSQL, opened so that what is committed is on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from fleet.errors import ConfigError, Unavailable

FORMAT = 2
"""2 added snapshots and notices to 1, which had neither and did not write its number down."""
PATIENCE_SECONDS = 5
"""A database that answers nothing for so long counts as gone."""

_TABLES = sa.MetaData()
EVENTS = sa.Table(
    "events",
    _TABLES,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("rollout", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("weight", sa.Double, nullable=False),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Index("events_of_rollout", "rollout", "id"),
)
STATE = sa.Table(
    "state", _TABLES, sa.Column("name", sa.Text, primary_key=True), sa.Column("value", sa.Text, nullable=False)
)
SNAPSHOTS = sa.Table(
    "snapshots",
    _TABLES,
    sa.Column("rollout", sa.Text, primary_key=True),
    sa.Column("id", sa.BigInteger, nullable=False),
    sa.Column("shape", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)
NOTICES = sa.Table(
    "notices",
    _TABLES,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
)
_APPEND_ONLY = {
    "sqlite": (
        "CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only'); END",
        "CREATE TRIGGER events_keep BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION events_are_append_only() RETURNS trigger LANGUAGE plpgsql "
        "AS $$ BEGIN RAISE EXCEPTION 'events are append-only'; END $$",
        "CREATE TRIGGER events_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON events "
        "FOR EACH STATEMENT EXECUTE FUNCTION events_are_append_only()",
    ),
}
for _dialect, _statements in _APPEND_ONLY.items():
    for _statement in _statements:
        _ddl: sa.DDL = sa.DDL(_statement)  # type: ignore[no-untyped-call]
        sa.event.listen(EVENTS, "after_create", _ddl.execute_if(dialect=_dialect))


class Store:
    """A database with the journal's tables, to be used from one thread."""

    def __init__(self, engine: sa.Engine, place: str) -> None:
        self._engine = engine
        self.place = place
        """For people, without a password."""

    @classmethod
    def open(cls, place: str) -> Store:
        """Open or create, by path or postgresql:// URL. ConfigError in one line where that is impossible."""
        store = _postgresql(place) if "://" in place else _sqlite(Path(place).expanduser())
        try:
            with store._engine.begin() as connection:
                _prepare(connection, store.place)
        except SQLAlchemyError as error:
            store.close()
            raise ConfigError(f"cannot open the journal {store.place}: {_reason(error)}") from error
        except ConfigError:
            store.close()
            raise
        return store

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """All or nothing, durable once left. Raises Unavailable when the disk or the database refuses."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise Unavailable(f"the journal cannot be used: {_reason(error)}") from error


def _sqlite(path: Path) -> Store:
    """WAL with synchronous=FULL: what a commit has returned from survives a kill -9 and a power cut."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"cannot open the journal {path}: {error}") from error
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)), hide_parameters=True)

    @sa.event.listens_for(engine, "connect")
    def _harden(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return Store(engine, str(path))


def _postgresql(place: str) -> Store:
    """Every session waits for the disk, and for an answer no longer than `PATIENCE_SECONDS`."""
    try:
        url = sa.make_url(place)
    except (ArgumentError, ValueError) as error:
        raise ConfigError("journal: this is no URL; write postgresql://user:password@host/database") from error
    if url.drivername not in ("postgresql", "postgresql+psycopg"):
        raise ConfigError(f"journal: '{url.drivername}' is not supported; give a path or a postgresql:// URL")
    arguments = {"connect_timeout": PATIENCE_SECONDS, "tcp_user_timeout": PATIENCE_SECONDS * 1000}
    engine = sa.create_engine(
        url.set(drivername="postgresql+psycopg"), connect_args=arguments, hide_parameters=True, pool_size=1
    )

    @sa.event.listens_for(engine, "connect")
    def _harden(connection: Any, _: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit = on")
            cursor.execute(f"SET statement_timeout = {PATIENCE_SECONDS * 1000}")
        connection.commit()

    return Store(engine, url.render_as_string(hide_password=True))


def _prepare(connection: sa.Connection, place: str) -> None:
    """Create what is missing; refuse what cannot keep the promise."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('fleet journal'))")
        if connection.exec_driver_sql("SHOW fsync").scalar_one() != "on":
            raise ConfigError(f"the journal {place} lies on a server with fsync off, which forgets in a power cut")
    _TABLES.create_all(connection)
    written = connection.execute(sa.select(STATE.c.value).where(STATE.c.name == "format")).scalar()
    if written is None:
        connection.execute(STATE.insert(), {"name": "format", "value": str(FORMAT)})
    elif written != str(FORMAT):
        raise ConfigError(f"the journal {place} has format {written}; this version writes format {FORMAT}")


def _reason(error: SQLAlchemyError) -> str:
    """The database's own words, on one line, without the statement."""
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split())

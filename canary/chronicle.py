"""What do people ask the journal? Histories, lists and exports; read only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from canary.events import OPERATORS, HardTripped, RolloutStarted, Ticked, WindowClosed
from canary.rollout_state import OVER, State
from canary.status import ExportedEvent, HistoryEntry, RolloutSummary
from canary.store import EVENTS, NOTICES, Store

_COLUMNS = (
    EVENTS.c.id,
    EVENTS.c.at,
    EVENTS.c.rollout,
    EVENTS.c.attempt,
    EVENTS.c.kind,
    EVENTS.c.state,
    EVENTS.c.weight,
    EVENTS.c.summary,
)
_STARTS = EVENTS.c.kind == RolloutStarted.__name__
_JUDGING = (WindowClosed, HardTripped, Ticked)
"""What takes a canary back; told without a notice in journals of the first format."""
_TURNS = sa.or_(
    EVENTS.c.kind.in_(kind.__name__ for kind in (RolloutStarted, *OPERATORS)),
    EVENTS.c.id.in_(sa.select(NOTICES.c.id)),
    sa.and_(EVENTS.c.state == State.ROLLED_BACK.value, EVENTS.c.kind.in_(kind.__name__ for kind in _JUDGING)),
)
"""What says why a rollout is as it is; replicas and routers go on coming and going after its end."""
_IS_TOLD = sa.or_(
    EVENTS.c.kind != WindowClosed.__name__,
    EVENTS.c.id.in_(sa.select(NOTICES.c.id)),
    EVENTS.c.state == State.ROLLED_BACK.value,  # in journals of the first format, which had no notices
)


class Chronicle:
    """Questions to a journal's store. Every one may raise Unavailable."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def rollout_ids(self) -> list[str]:
        """Every rollout ever started, oldest first."""
        with self._store.transaction() as connection:
            return list(connection.execute(sa.select(EVENTS.c.rollout).where(_STARTS).order_by(EVENTS.c.id)).scalars())

    def history(self, rollout_id: str, *, limit: int, windows: bool) -> list[HistoryEntry]:
        """The last `limit` entries of a rollout, oldest first; windows that changed nothing only on request."""
        query = sa.select(*_COLUMNS).where(EVENTS.c.rollout == rollout_id)
        query = query if windows else query.where(_IS_TOLD)
        with self._store.transaction() as connection:
            rows = connection.execute(query.order_by(EVENTS.c.id.desc()).limit(limit)).all()
        return [_entry(row) for row in reversed(rows)]

    def recent(self, *, after: int, limit: int) -> list[HistoryEntry]:
        """The last `limit` entries of all rollouts above an event's number, oldest first, without mere windows."""
        query = sa.select(*_COLUMNS).where(EVENTS.c.id > after, _IS_TOLD).order_by(EVENTS.c.id.desc()).limit(limit)
        with self._store.transaction() as connection:
            rows = connection.execute(query).all()
        return [_entry(row) for row in reversed(rows)]

    def export(self, rollout_id: str, *, after: int, limit: int) -> list[ExportedEvent]:
        """The next `limit` entries of a rollout above an event's number, with everything that was recorded of them."""
        query = sa.select(*_COLUMNS, EVENTS.c.body).where(EVENTS.c.rollout == rollout_id, EVENTS.c.id > after)
        with self._store.transaction() as connection:
            rows = connection.execute(query.order_by(EVENTS.c.id).limit(limit)).all()
        return [ExportedEvent(**_entry(row), body=json.loads(row.body)) for row in rows]

    def dates(self, rollout_id: str) -> tuple[float, float | None, Mapping[str, Any]]:
        """When a rollout started and when it came to its present end, if it has (wall clock); and its plan."""
        of_rollout = EVENTS.c.rollout == rollout_id
        first = sa.select(EVENTS.c.at, EVENTS.c.body).where(of_rollout).order_by(EVENTS.c.id).limit(1)
        last = sa.select(EVENTS.c.state).where(of_rollout).order_by(EVENTS.c.id.desc()).limit(1)
        before = sa.select(EVENTS.c.id).where(of_rollout, EVENTS.c.state != last.scalar_subquery())
        turned = sa.func.coalesce(before.order_by(EVENTS.c.id.desc()).limit(1).scalar_subquery(), 0)
        since = sa.select(EVENTS.c.at, EVENTS.c.state).where(of_rollout, EVENTS.c.id > turned).order_by(EVENTS.c.id)
        with self._store.transaction() as connection:
            started_at, body = connection.execute(first).one()
            ended_at, state = connection.execute(since.limit(1)).one()
        return started_at, ended_at if state in OVER else None, json.loads(body)["plan"]

    def summaries(self) -> list[RolloutSummary]:
        """Every rollout as its last event left it, oldest first."""
        return [self._summary(rollout_id) for rollout_id in self.rollout_ids()]

    def _summary(self, rollout_id: str) -> RolloutSummary:
        started_at, ended_at, plan = self.dates(rollout_id)
        query = sa.select(EVENTS.c.attempt, EVENTS.c.state, EVENTS.c.weight, EVENTS.c.summary)
        query = query.where(EVENTS.c.rollout == rollout_id).order_by(EVENTS.c.id.desc()).limit(1)
        with self._store.transaction() as connection:
            attempt, state, weight, _ = connection.execute(query).one()
            reason = connection.execute(query.where(_TURNS)).one().summary
        return RolloutSummary(
            id=rollout_id,
            canary=str(plan["canary"]),
            state=state,
            attempt=attempt,
            weight=weight,
            reason=reason,
            started_at=started_at,
            ended_at=ended_at,
        )


def _entry(row: sa.Row[*tuple[Any, ...]]) -> HistoryEntry:
    return HistoryEntry(
        id=row.id,
        at=row.at,
        rollout=row.rollout,
        attempt=row.attempt,
        event=row.kind,
        state=row.state,
        weight=row.weight,
        summary=row.summary,
    )

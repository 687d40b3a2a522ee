"""How is an event written down? Its kind's name and a JSON body; for the journal and for exported records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import TypeAdapter

from canary.events import Event, RolloutStarted

_KINDS: Mapping[str, TypeAdapter[Any]] = {
    kind.__name__: TypeAdapter(kind) for kind in (RolloutStarted, *get_args(Event))
}


def kind_of(event: RolloutStarted | Event) -> str:
    return type(event).__name__


def written(event: RolloutStarted | Event) -> str:
    """The event's fields as JSON; every float comes back bit for bit."""
    return _KINDS[kind_of(event)].dump_json(event).decode()


def read(kind: str, body: str) -> RolloutStarted | Event:
    """The event again. Raises ValueError (pydantic's) on a body that does not fit, KeyError on an unknown kind."""
    event: RolloutStarted | Event = _KINDS[kind].validate_json(body)
    return event

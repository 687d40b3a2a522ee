"""What does an exported journal say? JSON lines, read back into one rollout's events and what they led to."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from canary import event_json
from canary.events import Event, RolloutStarted, WindowClosed
from canary.windows import Window
from fleet.config import explain
from fleet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Recorded:
    """One event, and what the controller made of it at the time."""

    event: RolloutStarted | Event
    rollout: str
    attempt: int
    state: str
    weight: float
    """Percent."""
    summary: str


def plan_of(record: Sequence[Recorded]) -> Mapping[str, Any]:
    """The plan of a record, as it was given. Raises ConfigError where the record does not begin with it."""
    start = record[0].event if record else None
    if not isinstance(start, RolloutStarted):
        raise ConfigError("the record does not begin with RolloutStarted: export the rollout whole")
    return start.plan


class _Line(BaseModel):
    """What is read of a line; the rest of it is for people."""

    model_config = ConfigDict(frozen=True)

    rollout: str
    attempt: int
    event: str
    state: str
    weight: float
    summary: str
    body: dict[str, Any]


def read_record(path: Path, rollout: str | None = None) -> list[Recorded]:
    """One rollout's events in an exported journal, by default the last rollout's.

    Raises ConfigError, with the line, on a file that is not an export or has no such rollout.
    """
    whole = read_records(path)
    known = list(dict.fromkeys(recorded.rollout for recorded in whole))
    wanted = rollout or (known[-1] if known else "")
    record = [recorded for recorded in whole if recorded.rollout == wanted]
    if not record:
        raise ConfigError(f"{path} holds no rollout '{wanted}'; it holds: {', '.join(known) or 'nothing'}")
    return record


def read_records(path: Path) -> list[Recorded]:
    """Every rollout's events in an exported journal, in order.

    Raises ConfigError, with the line, on a file that is not an export.
    """
    try:
        with open_text(path, "rt") as file:
            return list(_lines(path, file))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def open_text(path: Path, mode: Literal["rt", "wt"]) -> TextIO:
    """A file of UTF-8 text, compressed where its name ends in .gz."""
    return cast(
        TextIO, gzip.open(path, mode, encoding="utf-8") if path.suffix == ".gz" else path.open(mode, encoding="utf-8")
    )


def steady_windows(record: Iterable[Recorded], *, skip: int) -> list[Window]:
    """The record's windows, without each one that saw a change of weight and the `skip` windows after it."""
    found: list[Window] = []
    percent, to_skip = None, 0
    for recorded in record:
        if not isinstance(recorded.event, WindowClosed):
            continue
        window = recorded.event.window
        to_skip = skip + 1 if window.canary_percent != percent else max(0, to_skip - 1)
        percent = window.canary_percent
        if not to_skip:
            found.append(window)
    return found


def _lines(path: Path, lines: Iterable[str]) -> Iterable[Recorded]:
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            line = _Line.model_validate_json(text)
            event = event_json.read(line.event, json.dumps(line.body))
        except ValidationError as error:
            what = explain(error)
            raise ConfigError(f"{path}:{number}: not a line of `fleet canary export`: {what}") from error
        except KeyError as error:
            raise ConfigError(f"{path}:{number}: unknown event '{line.event}'; exported by a newer version?") from error
        yield Recorded(event, line.rollout, line.attempt, line.state, line.weight, line.summary)

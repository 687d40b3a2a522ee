"""When did requests come and how long were they? Azure, BurstGPT and Mooncake traces and captures, in one form."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from deploy.evidence.capture.sealed import opened
from fleet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace."""

    at_seconds: float
    """From the first request."""
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace in order of arrival: it says how load comes, not what is asked."""

    rows: tuple[TraceRow, ...]

    @property
    def arrivals(self) -> tuple[float, ...]:
        return tuple(row.at_seconds for row in self.rows)


def load_trace(path: Path, key: str | None = None) -> Trace:
    """The requests of a trace file, by the names of its columns or keys:

    - Azure: CSV with `TIMESTAMP` (a date and time), `ContextTokens`, `GeneratedTokens`;
    - BurstGPT: CSV with `Timestamp` (s), `Request tokens`, `Response tokens`;
    - Mooncake: JSON lines with `timestamp` (ms), `input_length`, `output_length`;
    - `fleet bench capture`: JSON lines with `arrived_seconds`, `prompt_tokens`, `output_tokens`, opened with `key`.

    A request without a response (BurstGPT's failures) is left out.
    Raises `ConfigError` where the file is none of these, has an unusable line, or less than two requests; and of a
    capture that left requests out, as what is left comes neither as often nor as unevenly as all of them did.
    """
    try:
        text = opened(path, path.read_bytes(), key).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}") from error
    rows = sorted(_json_lines(path, text) if text.lstrip().startswith("{") else _table(path, text))
    if len(rows) < 2:
        raise ConfigError(f"{path} holds less than two requests")
    start = rows[0][0]
    return Trace(tuple(TraceRow(at - start, prompt, output) for at, prompt, output in rows))


_Row = tuple[float, int, int]
_Line = TypeVar("_Line")


def _azure(row: Mapping[str, str]) -> _Row:
    # Seven digits of a second are one more than datetime reads.
    stamp = datetime.fromisoformat(row["TIMESTAMP"][:26]).replace(tzinfo=UTC)
    return stamp.timestamp(), int(row["ContextTokens"]), int(row["GeneratedTokens"])


def _burst_gpt(row: Mapping[str, str]) -> _Row:
    return float(row["Timestamp"]), int(row["Request tokens"]), int(row["Response tokens"])


_TABLES: tuple[tuple[frozenset[str], Callable[[Mapping[str, str]], _Row]], ...] = (
    (frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}), _azure),
    (frozenset({"Timestamp", "Request tokens", "Response tokens"}), _burst_gpt),
)


def _table(path: Path, text: str) -> Iterator[_Row]:
    reader = csv.DictReader(text.splitlines())
    for columns, read in _TABLES:
        if columns <= set(reader.fieldnames or ()):
            yield from _rows(path, enumerate(reader, start=2), read)
            return
    raise ConfigError(f"{path} is no Azure, BurstGPT or Mooncake trace: its first line names none of their columns")


def _json_lines(path: Path, text: str) -> Iterator[_Row]:
    # No splitlines: JSON may hold other ends of lines, such as U+2028, as they are.
    lines = ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())
    return _rows(path, lines, _of_json)


def _of_json(line: str) -> _Row:
    value: dict[str, Any] = json.loads(line)
    if "arrived_seconds" not in value:
        return float(value["timestamp"]) / 1000, int(value["input_length"]), int(value["output_length"])
    if (weight := float(value.get("weight", 1.0))) != 1.0:
        raise ValueError(
            f"it stands for {weight:.3g} requests, so not all of its kind were kept and their arrivals are not those "
            "of the traffic; capture again with a larger --per-bucket or --max-mib"
        )
    return float(value["arrived_seconds"]), int(value["prompt_tokens"]), int(value["output_tokens"])


def _rows(path: Path, lines: Iterable[tuple[int, _Line]], read: Callable[[_Line], _Row]) -> Iterator[_Row]:
    for number, line in lines:
        try:
            row = read(line)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}:{number}: not a request of this trace: {error}") from error
        if row[2] > 0:
            yield row

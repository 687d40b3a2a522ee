"""Where does a benchmark's table go in a document? Between the marks that carry the benchmark's name."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from pydantic import ValidationError

from fleet.config import explain
from fleet.errors import ConfigError, FleetError


def replaced(document: str, name: str, text: str) -> str:
    """The document with `text` between the marks of `name`; ConfigError where it has none."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, has_begin, rest = document.partition(begin)
    _, has_end, tail = rest.partition(end)
    if not has_begin or not has_end:
        raise ConfigError(f"the document has no place for the table: it needs the lines {begin} and {end}")
    return f"{head}{begin}\n\n{text}\n{end}{tail}"


def write_into(path: Path, name: str, text: str) -> None:
    """Replace the table in a file. Raises ConfigError."""
    try:
        document = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    path.write_text(replaced(document, name, text), encoding="utf-8")


def present(lines: Callable[[], Iterable[str]], into: Path | None, name: str) -> None:
    """Print the lines that a benchmark finds, or write them into a document; what it cannot do ends in one line.

    A benchmark that is told to end (SIGTERM) does so as at Ctrl-C: it takes down the processes that it has started.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        text = "\n".join(lines())
        if into is None:
            sys.stdout.write(text)
        else:
            write_into(into, name, text)
    except FleetError as error:
        raise SystemExit(str(error)) from error
    except ValidationError as error:
        raise SystemExit(explain(error)) from error
    except KeyboardInterrupt:
        raise SystemExit("stopped") from None

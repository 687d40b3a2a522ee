"""Where does a benchmark's table go in a document? Between the marks that carry the benchmark's name."""

from __future__ import annotations

from pathlib import Path

from fleet.errors import ConfigError


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

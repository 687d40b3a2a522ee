"""Which windows does an exported journal hold? JSON lines, of which only closed windows are read."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from canary.events import WindowClosed
from canary.windows import Window
from fleet.config import explain
from fleet.errors import ConfigError

_CLOSED = TypeAdapter(WindowClosed)


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True)

    event: str
    body: dict[str, object]


def read_windows(path: Path, *, skip: int) -> list[Window]:
    """The windows of every rollout in the file, in order, without the one that saw a change of weight and the
    `skip` windows after it. Raises ConfigError, with the line, on a file that is no exported journal."""
    found: list[Window] = []
    percent, to_skip = None, 0
    for number, text in enumerate(_text(path).splitlines(), start=1):
        if not text.strip():
            continue
        window = _window(text, f"{path}:{number}")
        if window is None:
            continue
        to_skip = skip + 1 if window.canary_percent != percent else max(0, to_skip - 1)
        percent = window.canary_percent
        if not to_skip:
            found.append(window)
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _window(text: str, where: str) -> Window | None:
    try:
        line = _Line.model_validate_json(text)
        if line.event != WindowClosed.__name__:
            return None
        return _CLOSED.validate_json(json.dumps(line.body)).window
    except ValidationError as error:
        raise ConfigError(f"{where}: not a line of an exported journal: {explain(error)}") from error

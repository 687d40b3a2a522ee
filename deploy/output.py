"""How a command prints: for people, or as JSON for programs."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

PIPE_COLUMNS = 160


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


Output = Annotated[Format, typer.Option("-o", "--output", help="text or json")]


def print_json(value: object) -> None:
    """The value alone on stdout, so that it can be piped."""
    typer.echo(json.dumps(value, indent=2))


def console() -> Console:
    """Standard output; a pipe or a log gets wide lines instead of folded columns."""
    return Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)

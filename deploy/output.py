"""How a command prints: for people, or as JSON for programs."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


Output = Annotated[Format, typer.Option("-o", "--output", help="text or json")]


def print_json(value: object) -> None:
    """The value alone on stdout, so that it can be piped."""
    typer.echo(json.dumps(value, indent=2))

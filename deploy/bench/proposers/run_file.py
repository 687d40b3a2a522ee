"""What was measured so far? A file of one line per block, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from deploy.bench.proposers.block import Measured
from deploy.bench.proposers.plan import Place
from fleet.config import explain
from fleet.errors import ConfigError

_LINE = TypeAdapter(Measured)


class RunFile:
    """The first line holds the run's settings; only a run of the same settings goes on."""

    def __init__(self, path: Path, settings: dict[str, object]) -> None:
        """Raises ConfigError where the file is of another run or unreadable. A line cut off in mid-write is dropped."""
        self._path = path
        self.blocks: list[Measured] = []
        header = json.dumps(settings, sort_keys=True)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(header + "\n")
            return
        whole = path.read_text().rpartition("\n")[0]
        first, *lines = whole.split("\n")
        if first != header:
            raise ConfigError(f"{path} was measured with other settings: take another --results, or remove it")
        try:
            self.blocks = [_LINE.validate_json(line) for line in lines]
        except ValidationError as error:
            raise ConfigError(f"{path} cannot be read: {explain(error)}") from error
        path.write_text(whole + "\n")

    def has(self, place: Place) -> bool:
        return any((b.round, b.cell, b.arm) == (place.round, place.cell, place.arm.name) for b in self.blocks)

    def append(self, block: Measured) -> None:
        """On disk before the next block begins."""
        with self._path.open("ab") as file:
            file.write(_LINE.dump_json(block) + b"\n")
        self.blocks.append(block)

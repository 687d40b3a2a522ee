"""What was measured so far? A file of one line per block, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from deploy.bench.proposers.block import Measured
from deploy.bench.proposers.plan import Place
from fleet.config import explain
from fleet.errors import ConfigError

ARMS_LINE = '{"arms"'

_LINE = TypeAdapter(Measured)
_ARMS = TypeAdapter(dict[str, dict[str, object]])


class RunFile:
    """The first line holds what all runs in the file have in common; runs may add rounds and cells to it."""

    def __init__(self, path: Path, settings: Mapping[str, object], arms: Mapping[str, object]) -> None:
        """`arms`: the settings of each, as JSON has them, by name.

        Raises ConfigError where the file is of other settings or unreadable. A line cut off in mid-write is dropped.
        """
        self._path = path
        self.blocks: list[Measured] = []
        header = json.dumps(settings, sort_keys=True)
        whole = path.read_text().rpartition("\n")[0] if path.exists() else header
        first, *lines = whole.split("\n")
        if first != header:
            raise ConfigError(f"{path} was measured with other settings: take another --results, or remove it")
        try:
            known = self._read(lines)
        except ValidationError as error:
            raise ConfigError(f"{path} cannot be read: {explain(error)}") from error
        changed = [name for name, kept in arms.items() if known.get(name, kept) != kept]
        if changed:
            raise ConfigError(f"{path} has {', '.join(changed)} with other settings: take another --results")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([whole, _ARMS.dump_json({"arms": known | dict(arms)}).decode(), ""]))

    def _read(self, lines: Sequence[str]) -> dict[str, object]:
        """Take in the blocks; what is said of arms."""
        known: dict[str, object] = {}
        for line in lines:
            if line.startswith(ARMS_LINE):
                known |= _ARMS.validate_json(line)["arms"]
            else:
                self.blocks.append(_LINE.validate_json(line))
        return known

    def has(self, place: Place) -> bool:
        wanted = (place.round, place.cell, place.arm.name, place.is_last)
        return any((block.round, block.cell, block.arm, block.is_last) == wanted for block in self.blocks)

    def is_closed(self, place: Place) -> bool:
        """Whether the round of this place has ended: what came now would lie between no two blocks of the baseline."""
        return any(block.is_last and (block.round, block.cell) == (place.round, place.cell) for block in self.blocks)

    def append(self, block: Measured) -> None:
        """On disk before the next block begins."""
        with self._path.open("ab") as file:
            file.write(_LINE.dump_json(block) + b"\n")
        self.blocks.append(block)

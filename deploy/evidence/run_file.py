"""What has a run measured so far? An append-only file that survives a kill, so that the run can go on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError

from canary.evidence import changes
from deploy.evidence.levels import Probed
from deploy.evidence.measured import MeasuredBlock
from fleet.errors import ConfigError

SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class Header:
    """The first line: what the run is, so that no other run is continued by mistake."""

    schema: int
    created: float
    config: dict[str, Any]
    model: str
    inputs_digest: str
    """Of the prompts and the trace."""
    fingerprints: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of each path, where the server says: part -> value."""
    kind: Literal["header"] = "header"


@dataclass(frozen=True, slots=True)
class SearchStep:
    """One block of the baseline, while looking for the peak."""

    probed: Probed
    kind: Literal["search"] = "search"


@dataclass(frozen=True, slots=True)
class BlockLine:
    """One measured block."""

    block: MeasuredBlock
    kind: Literal["block"] = "block"


@dataclass(frozen=True, slots=True)
class FleetChanged:
    """The fleet was found to be another one than when the run began, so nobody knows which blocks are of which."""

    changes: tuple[str, ...]
    kind: Literal["changed"] = "changed"


Line = Header | SearchStep | BlockLine | FleetChanged
_ADAPTER: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])


class RunFile:
    """One run's measurements. Every line is on disk before the next measurement begins."""

    def __init__(self, path: Path, header: Header, probes: list[Probed], blocks: list[MeasuredBlock]) -> None:
        self.header = header
        self.probes = probes
        self.blocks = blocks
        self._path = path

    @classmethod
    def open(cls, path: Path, header: Header) -> Self:
        """A new file, or the one that a run of the same header (but for its date) left.

        A last line that was cut off in mid-write is dropped. Raises `ConfigError` where the file is of another run, of
        a fleet that is another one by now or does not say what it is any more, or cannot be written.
        """
        try:
            lines = _read(path)
            if not lines:
                path.parent.mkdir(parents=True, exist_ok=True)
                run = cls(path, header, [], [])
                run._append(header)
                return run
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from error
        found = lines[0]
        if not isinstance(found, Header) or _identity(found) != _identity(header):
            raise ConfigError(
                f"{path} holds another matrix's measurements: choose another folder with -o, or delete it"
            )
        was_changed = [change for line in lines if isinstance(line, FleetChanged) for change in line.changes]
        if changed := was_changed or changes(found.fingerprints, header.fingerprints):
            raise ConfigError(_on_two_fleets(path, changed))
        if unknown := sorted(found.fingerprints.keys() - header.fingerprints.keys()):
            raise ConfigError(
                f"{path} was measured on a known fleet, but now nothing says what path '{unknown[0]}' is: give the "
                "admin token with --token to go on, or choose another folder with -o"
            )
        probes = [line.probed for line in lines if isinstance(line, SearchStep)]
        blocks = [line.block for line in lines if isinstance(line, BlockLine)]
        return cls(path, found, probes, blocks)

    def add_probe(self, probe: Probed) -> None:
        self.probes.append(probe)
        self._append(SearchStep(probe))

    def add_block(self, block: MeasuredBlock) -> None:
        self.blocks.append(block)
        self._append(BlockLine(block))

    def close(self, fingerprints: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
        """What was measured, by path: what it was at the beginning, if it still is by `fingerprints`.

        Raises `ConfigError` where it is another fleet by now, and for good: its blocks can no longer be told apart.
        """
        if changed := changes(self.header.fingerprints, fingerprints):
            self._append(FleetChanged(tuple(changed)))
            raise ConfigError(_on_two_fleets(self._path, changed))
        return {path: parts for path, parts in self.header.fingerprints.items() if path in fingerprints}

    def whole_rounds(self, arms: Sequence[str]) -> list[MeasuredBlock]:
        """The blocks of the rounds that every arm has run. Arms measured at different times are no pair.

        Where a round was begun again after a kill, its latest blocks count.
        """
        by_place = {(block.condition, block.round, block.arm): block for block in self.blocks}
        return [
            block
            for (condition, number, _), block in by_place.items()
            if all((condition, number, arm) in by_place for arm in arms)
        ]

    def forget_parts(self, arms: Sequence[str]) -> None:
        """Drop blocks of rounds that a kill cut short, so that the whole round is run again."""
        self.blocks = self.whole_rounds(arms)

    def _append(self, line: Line) -> None:
        with self._path.open("ab") as file:
            file.write(_ADAPTER.dump_json(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _identity(header: Header) -> tuple[object, ...]:
    return header.schema, header.config, header.model, header.inputs_digest


def _on_two_fleets(path: Path, changed: Sequence[str]) -> str:
    return (
        f"{path} was measured on a fleet that has changed since: {'; '.join(changed)}; "
        "choose another folder with -o, or delete it"
    )


def _read(path: Path) -> list[Line]:
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    lines = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            lines.append(_ADAPTER.validate_json(line))
        except ValidationError as error:
            raise ConfigError(f"{path}:{number} is not a line of a run; delete the file to begin anew") from error
    return lines

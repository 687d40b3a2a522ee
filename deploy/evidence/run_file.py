"""What has a run measured so far? An append-only file that survives a kill, so that the run can go on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError

from canary.evidence import changes
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
    """The baseline's throughput at one concurrency, while looking for the peak."""

    concurrency: int
    tokens_per_second: float
    kind: Literal["search"] = "search"


@dataclass(frozen=True, slots=True)
class BlockLine:
    """One measured block."""

    block: MeasuredBlock
    kind: Literal["block"] = "block"


_Line = Annotated[Header | SearchStep | BlockLine, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[Header | SearchStep | BlockLine] = TypeAdapter(_Line)


class RunFile:
    """One run's measurements. Every line is on disk before the next measurement begins."""

    def __init__(self, path: Path, header: Header, search: list[SearchStep], blocks: list[MeasuredBlock]) -> None:
        self.header = header
        self.search = search
        self.blocks = blocks
        self._path = path

    @classmethod
    def open(cls, path: Path, header: Header) -> Self:
        """A new file, or the one that a run of the same header (but for its date) left.

        A last line that was cut off in mid-write is dropped. Raises `ConfigError` where the file is of another run or
        cannot be written.
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
        if changed := changes(found.fingerprints, header.fingerprints):
            raise ConfigError(
                f"{path} was measured on a fleet that has changed since: {'; '.join(changed)}; "
                "choose another folder with -o, or delete it"
            )
        search = [line for line in lines if isinstance(line, SearchStep)]
        blocks = [line.block for line in lines if isinstance(line, BlockLine)]
        return cls(path, found, search, blocks)

    @property
    def throughput_by_concurrency(self) -> dict[int, float]:
        return {step.concurrency: step.tokens_per_second for step in self.search}

    def add_search_step(self, step: SearchStep) -> None:
        self.search.append(step)
        self._append(step)

    def add_block(self, block: MeasuredBlock) -> None:
        self.blocks.append(block)
        self._append(BlockLine(block))

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

    def _append(self, line: Header | SearchStep | BlockLine) -> None:
        with self._path.open("ab") as file:
            file.write(_ADAPTER.dump_json(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _identity(header: Header) -> tuple[object, ...]:
    return header.schema, header.config, header.model, header.inputs_digest


def _read(path: Path) -> list[Header | SearchStep | BlockLine]:
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

"""What is measured, and in which order? Every arm asks the same in every round, in turns A B … A, A … B A."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deploy.bench.prompts import Prompt
from fleet.config import DrillConfig, SpeculativeConfig
from fleet.errors import ConfigError

BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class Arm:
    """A proposer with its settings; without any it is the baseline."""

    name: str
    speculative: SpeculativeConfig | None = None
    drill: DrillConfig | None = None
    categories: tuple[str, ...] = ()
    """Of the prompts that it is measured on; all where none is named."""

    def is_in(self, cell: Cell) -> bool:
        """The rejection rule differs from the coupled one only where something is drawn."""
        is_coupled = self.speculative is None or self.speculative.acceptance == "coupled"
        is_named = not self.categories or cell.category in self.categories
        return is_named and (is_coupled or cell.temperature > 0)


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """A condition under which all arms are compared."""

    temperature: float
    concurrency: int
    category: str

    def __str__(self) -> str:
        return f"{self.category}, temperature {self.temperature:g}, {self.concurrency} at a time"


@dataclass(frozen=True, slots=True)
class Place:
    """One block of the run: an arm's turn in a round of a cell."""

    round: int
    cell: Cell
    arm: Arm
    is_last: bool = False
    """The baseline's second block of a round."""


def places(arms: Sequence[Arm], cells: Sequence[Cell], rounds: int) -> Iterator[Place]:
    """All blocks in order: whole rounds first, so that whatever is there when a run ends covers every cell.

    The baseline, `arms[0]`, begins and ends each round of a cell, so that all others lie between two blocks of it.
    Every second round runs backwards, so that a drift of the machine within a pair of rounds cancels; each pair begins
    with another arm, so that none always comes after the same one.
    """
    baseline, others = arms[0], arms[1:]
    for round_ in range(rounds):
        for cell in cells:
            present = [arm for arm in others if arm.is_in(cell)]
            first = (round_ // 2) % len(present) if present else 0
            ordered = [*present[first:], *present[:first]]
            yield Place(round_, cell, baseline)
            yield from (Place(round_, cell, arm) for arm in (ordered if round_ % 2 == 0 else reversed(ordered)))
            yield Place(round_, cell, baseline, is_last=True)


def prompts_of(prompts: Sequence[Prompt], place: Place, count: int) -> tuple[Prompt, ...]:
    """The prompts of a block, the same for all arms of its round; other rounds take others as long as there are any."""
    found = [prompt for prompt in prompts if prompt.category == place.cell.category]
    if not found:
        known = ", ".join(sorted({prompt.category for prompt in prompts}))
        raise ConfigError(f"there are no prompts of the category '{place.cell.category}'; there are {known}")
    return tuple(found[(place.round * count + index) % len(found)] for index in range(count))

"""What is measured, and in which order? Every arm asks the same in every round, in turns A B B A."""

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

    def is_in(self, cell: Cell) -> bool:
        """The rejection rule differs from the coupled one only where something is drawn."""
        is_coupled = self.speculative is None or self.speculative.acceptance == "coupled"
        return is_coupled or cell.temperature > 0


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


def places(arms: Sequence[Arm], cells: Sequence[Cell], rounds: int) -> Iterator[Place]:
    """All blocks in order: whole rounds first, so that whatever is there when a run ends covers every cell.

    Every second round runs backwards, so that a drift of the machine within a pair of rounds cancels; each pair begins
    with another arm, so that none always comes after the same one.
    """
    for round_ in range(rounds):
        first = (round_ // 2) % len(arms)
        ordered = [*arms[first:], *arms[:first]]
        for cell in cells:
            for arm in ordered if round_ % 2 == 0 else reversed(ordered):
                if arm.is_in(cell):
                    yield Place(round_, cell, arm)


def prompts_of(prompts: Sequence[Prompt], place: Place, count: int) -> tuple[Prompt, ...]:
    """The prompts of a block, the same for all arms of its round; other rounds take others as long as there are any."""
    found = [prompt for prompt in prompts if prompt.category == place.cell.category]
    if not found:
        known = ", ".join(sorted({prompt.category for prompt in prompts}))
        raise ConfigError(f"there are no prompts of the category '{place.cell.category}'; there are {known}")
    return tuple(found[(place.round * count + index) % len(found)] for index in range(count))

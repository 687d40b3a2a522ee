"""Which proposers are soaked, with which settings? All of them, and between them every way to draft and to judge."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fleet.config import SpeculativeConfig

DRAFT_TOKENS = 4
TREE = (2, 1, 1)
KILLED = "draft_model, killed"
PATIENT = {"deadline_floor_ms": 2000.0}
"""A draft that is left alone for being late is not told of closings: it would keep its cache until the lease ends."""


@dataclass(frozen=True, slots=True)
class SoakArm:
    """A proposer; with `kills_draft` its draft worker is a process that is killed."""

    name: str
    speculative: SpeculativeConfig
    kills_draft: bool = False

    @property
    def has_draft(self) -> bool:
        return self.speculative.method == "draft_model"


def soak_arms(models: Path, say: Callable[[str], None]) -> list[SoakArm]:
    """All proposers; a trained one that is not in `models` is left out with a line.

    Lengths are not adaptive, so that all of them draft all the time, however badly.
    """
    return list(_found(models, say))


def _found(models: Path, say: Callable[[str], None]) -> Iterable[SoakArm]:
    trained: tuple[tuple[str, str, dict[str, object]], ...] = (
        ("draft_model, ahead, rejection", "draft", {"draft_ahead": True, "acceptance": "rejection", **PATIENT}),
        (KILLED, "draft", {}),
        ("eagle, rejection", "eagle", {"acceptance": "rejection"}),
        ("eagle3, tree", "eagle3", {"tree": TREE}),
        ("medusa, tree", "medusa", {"tree": TREE}),
    )
    for name, folder, keys in trained:
        if (models / folder).is_dir():
            yield _arm(name, model=str(models / folder), **keys)
        else:
            say(f"{name} is left out: there is no {models / folder}")
    yield _arm("ngram")
    # So few that some are forgotten all the time.
    yield _arm("suffix", suffix_decoding_max_cached_requests=8)


def _arm(name: str, **keys: object) -> SoakArm:
    common = {"method": name.partition(",")[0], "num_speculative_tokens": DRAFT_TOKENS, "adaptive": False}
    return SoakArm(name, SpeculativeConfig.model_validate({**common, **keys}), kills_draft=name == KILLED)

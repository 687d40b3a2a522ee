"""What can be claimed about the cells of a matrix, and how sure must each claim be so that hardly any is false?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from deploy.evidence.bootstrap import MIN_ROUNDS, RESAMPLES, PairedEffect, holm, holm_level
from deploy.evidence.cell_evidence import CellEvidence
from deploy.evidence.config import JudgeConfig
from deploy.evidence.sign_flip import sign_flip_p

KEEP_SHARE = 1 / 2
WORSE_SHARE = 1 / 4
HARM_SHARE = 1 / 4
"""How alpha is divided among keeps, drops for a speed that got worse, and drops for answers that did. The three add up
to alpha, so that the chance of any false claim of any kind is at most that."""


@dataclass(frozen=True, slots=True)
class Effects:
    """What is judged of a cell. None where there are too few rounds, or where the metric is not judged."""

    objective: PairedEffect | None
    ttft: PairedEffect | None
    ttft_room: PairedEffect | None
    throughput: PairedEffect | None

    @classmethod
    def of(cls, cell: CellEvidence, seed: int, resamples: int) -> Effects:
        gains = (cell.objective, cell.ttft, cell.ttft_room, cell.throughput or ())
        return cls(*(PairedEffect(values, seed, resamples) if len(values) >= MIN_ROUNDS else None for values in gains))


@dataclass(frozen=True, slots=True)
class Claims:
    """One-sided p-values of what could be claimed about one cell."""

    faster: float
    """By more than the least effect."""
    ttft_holds: float
    throughput_holds: float
    """0 in an open loop, where a keep claims nothing of it."""
    slower: float
    ttft_worse: float
    throughput_worse: float | None
    """None where throughput is not judged, so that no claim about it takes from the others' levels."""
    more_bad: float | None
    """None where the arms did not differ in any round, so that there is nothing to be tested; so is the next."""
    more_degenerate: float | None

    @property
    def keep(self) -> float:
        """A keep claims all three at once: its p-value is the largest of theirs (intersection-union; Berger, 1982)."""
        return max(self.faster, self.ttft_holds, self.throughput_holds)

    @property
    def worse(self) -> tuple[float, ...]:
        return tuple(p for p in (self.slower, self.ttft_worse, self.throughput_worse) if p is not None)

    @property
    def harm(self) -> tuple[float, ...]:
        return tuple(p for p in (self.more_bad, self.more_degenerate) if p is not None)

    @classmethod
    def of(cls, cell: CellEvidence, effects: Effects, rules: JudgeConfig) -> Claims:
        least = least_throughput(rules)
        return cls(
            faster=_above(effects.objective, math.log1p(rules.min_effect)),
            ttft_holds=_above(effects.ttft_room, 0.0),
            throughput_holds=0.0 if cell.throughput is None else _above(effects.throughput, least),
            slower=_below(effects.objective, 0.0),
            ttft_worse=_below(effects.ttft_room, 0.0),
            throughput_worse=None if cell.throughput is None else _below(effects.throughput, least),
            more_bad=sign_flip_p(cell.bad.differences) if any(cell.bad.differences) else None,
            more_degenerate=sign_flip_p(cell.degenerate.differences) if any(cell.degenerate.differences) else None,
        )


@dataclass(frozen=True, slots=True)
class Levels:
    """A claim is made where its p-value is at most its kind's level."""

    keep: float
    worse: float
    harm: float

    @classmethod
    def of(cls, claims: Sequence[Claims], alpha: float) -> Levels:
        """Holm's, over all cells, for each kind with its share of alpha."""
        return cls(
            keep=holm_level([item.keep for item in claims], alpha * KEEP_SHARE),
            worse=holm_level([p for item in claims for p in item.worse], alpha * WORSE_SHARE),
            harm=holm_level([p for item in claims for p in item.harm], alpha * HARM_SHARE),
        )


def resamples_for(cells: int, alpha: float) -> int:
    """So many that a bootstrap's p-value can fall well below the level of the first of all claims for speed."""
    strictest = alpha * WORSE_SHARE / (3 * max(1, cells))
    return max(RESAMPLES, math.ceil(5 / strictest) - 1)


def corrected(claims: Sequence[Claims]) -> list[tuple[float, float]]:
    """Of each cell the p-values of a keep and of "slower", corrected for all claims: to be held against alpha."""
    keeps = holm([item.keep for item in claims])
    losses = iter(holm([p for item in claims for p in item.worse]))
    slower = []
    for item in claims:
        first, *_ = islice(losses, len(item.worse))
        slower.append(first)
    return [
        (min(1.0, keep / KEEP_SHARE), min(1.0, loss / WORSE_SHARE)) for keep, loss in zip(keeps, slower, strict=True)
    ]


def least_throughput(rules: JudgeConfig) -> float:
    """The logarithmic gain in throughput below which it has become too little."""
    return math.log1p(-min(rules.max_throughput_decrease, 0.999))


def _above(effect: PairedEffect | None, bound: float) -> float:
    return 1.0 if effect is None else effect.p_above(bound)


def _below(effect: PairedEffect | None, bound: float) -> float:
    return 1.0 if effect is None else effect.p_below(bound)

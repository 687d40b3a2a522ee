"""Which rows of a step's logits are drawn from, and where do they lie? Noise and cuts are numpy's, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from replicas.engine.transfer import to_host


@dataclass(frozen=True, slots=True, eq=False)
class RowRange:
    """Consecutive rows of a tensor `[R, V]`."""

    source: Tensor
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def rows(self) -> Tensor:
        return self.source[self.begin : self.end]


def joined(ranges: Sequence[RowRange]) -> Tensor:
    """All their rows (at least one), `[n, V]`; megabytes that are copied only where they do not follow each other."""
    filled = [each for each in ranges if len(each) > 0]
    if all(one.source is other.source and one.end == other.begin for one, other in pairwise(filled)):
        return filled[0].source[filled[0].begin : filled[-1].end]
    return torch.cat([each.rows for each in filled])


def on_host(ranges: Sequence[RowRange], wanted: Sequence[bool]) -> list[RowRange]:
    """The same ranges, the wanted ones in the host's memory: one copy of their rows and of no others."""
    moving = [each for each, is_wanted in zip(ranges, wanted, strict=True) if is_wanted and len(each) > 0]
    if not moving or moving[0].source.device.type == "cpu":
        return list(ranges)
    copied = to_host(joined(moving))
    ends = accumulate(len(each) for each in moving)
    moved = iter([RowRange(copied, end - len(each), end) for each, end in zip(moving, ends, strict=True)])
    return [
        next(moved) if is_wanted and len(each) > 0 else each for each, is_wanted in zip(ranges, wanted, strict=True)
    ]

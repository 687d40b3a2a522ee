"""What does each row of a step see? As the kernel of attention reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from replicas.engine.span import Span


@dataclass(frozen=True, slots=True)
class View:
    """Of the layers of one kind."""

    seen: NDArray[np.int64]
    """`[rows, 3]`: the first place of the arena that a row may see, how many places there are before those of its own
    span, and how many of these there are up to the last that it sees. Whatever comes behind does not touch the row."""
    sight: NDArray[np.uint64]
    """`[rows]`: which of its span's own tokens it sees, bit i for the i-th."""


def view_of(spans: Sequence[Span], window: int | None) -> View:
    """The view of spans of at most 64 tokens, where a token sees `window` positions, itself included; None: all."""
    seen: list[tuple[int, int, int]] = []
    sight: list[int] = []
    for span in spans:
        positions = span.positions()
        for position, visible in zip(positions, span.sight(), strict=True):
            first = 0 if window is None else max(0, position + 1 - window)
            before = max(0, span.position - first)
            if first > span.position:
                visible &= sum(1 << index for index, other in enumerate(positions) if other >= first)
            seen.append((span.extent_start + span.position - before, before, visible.bit_length()))
            sight.append(visible)
    return View(np.array(seen), np.array(sight, dtype=np.uint64))

"""Who sees whom: the tokens of a step's segments, their positions, and the cached tokens that each may look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Span:
    """One segment's place in the packed step and in the arena."""

    row: int
    """Its first row among the step's tokens."""
    length: int
    extent_start: int
    position: int
    """Tokens cached before it."""
    parents: tuple[int, ...] = ()
    """Of the last tokens, where they are a tree."""

    @property
    def end(self) -> int:
        """Tokens cached after it."""
        return self.position + self.length

    def positions(self) -> list[int]:
        """Each token's position in its sequence; a tree token's is one more than its parent's."""
        trunk = self.length - len(self.parents)
        found = list(range(self.position, self.position + trunk))
        for parent in self.parents:
            found.append(self.position + trunk if parent < 0 else found[trunk + parent] + 1)
        return found

    def places(self) -> range:
        """Where its tokens are cached, in the arena."""
        return range(self.extent_start + self.position, self.extent_start + self.end)

    def sight(self) -> list[int]:
        """Which of the span's own tokens each one sees, itself included, windows aside: bit i for the i-th."""
        trunk = self.length - len(self.parents)
        found = [(2 << row) - 1 for row in range(trunk)]
        for row, parent in enumerate(self.parents, start=trunk):
            before = (1 << trunk) - 1 if parent < 0 else found[trunk + parent]
            found.append(before | 1 << row)
        return found

    def first_seen(self, window: int | None) -> int:
        """The oldest place in its extent that any of its tokens sees."""
        return 0 if window is None else max(0, self.position + 1 - window)


def visibility(spans: Sequence[Span], window: int | None, rows: int, keys: int) -> Tensor:
    """True where a token may look: bool `[spans, rows, keys]`, keys counted from each span's first seen.

    Spans with fewer tokens repeat their last row; keys behind a span's own are seen by none.
    """
    padded = [_padded(span.positions(), rows) for span in spans]
    positions = torch.tensor(padded)[:, :, None]
    places = torch.tensor([span.first_seen(window) for span in spans])[:, None, None] + torch.arange(keys)
    visible = places <= positions
    if window is not None:
        visible &= places > positions - window
    for index, span in enumerate(spans):
        if span.parents:
            tree = _tree_visibility(span, window)
            end = span.end - span.first_seen(window)
            visible[index, :, end - len(tree) :] = False
            visible[index, span.length - len(tree) : span.length, end - len(tree) : end] = tree
            visible[index, span.length :] = visible[index, span.length - 1]
    return visible


def _padded(positions: list[int], rows: int) -> list[int]:
    return positions + positions[-1:] * (rows - len(positions))


def _tree_visibility(span: Span, window: int | None) -> Tensor:
    """True where a column's token is the row's ancestor or itself, and within the window: bool `[n, n]`."""
    count = len(span.parents)
    found = torch.eye(count, dtype=torch.bool)
    for row, parent in enumerate(span.parents):
        if parent >= 0:
            found[row] |= found[parent]
    if window is not None:
        positions = torch.tensor(span.positions()[-count:])
        found &= positions > positions[:, None] - window
    return found

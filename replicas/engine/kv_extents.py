"""Who holds which stretch of the KV arena? A pure allocator of contiguous extents."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import chain

GROWTH_TOKENS = 64
"""Room beyond what is needed now: an extent grows at most once per so many tokens. More of it would spare moves, which
are cheap, and refuse sequences, which is not."""


@dataclass(frozen=True, slots=True)
class Extent:
    """`length` consecutive token places from `start`."""

    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


class KvExtents:
    """Hands out disjoint extents of `[0, capacity)`.

    Invariant: the free extents are sorted, disjoint and never touch; together with those handed out they
    cover the arena exactly.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = [Extent(0, capacity)]

    @property
    def free_tokens(self) -> int:
        return sum(extent.length for extent in self._free)

    @property
    def used_tokens(self) -> int:
        return self.capacity - self.free_tokens

    def allocate(self, length: int) -> Extent | None:
        """An extent of exactly `length` from the smallest hole that holds it; None when no hole does."""
        holes = [hole for hole in self._free if hole.length >= length]
        if not holes:
            return None
        hole = min(holes, key=lambda candidate: candidate.length)
        index = self._free.index(hole)
        rest = Extent(hole.start + length, hole.length - length)
        self._free[index : index + 1] = [rest] if rest.length else []
        return Extent(hole.start, length)

    def grow(self, extent: Extent, length: int) -> Extent | None:
        """The same extent made `length` long in place; None when the places behind it are taken."""
        missing = length - extent.length
        index = bisect_left(self._free, extent.end, key=lambda hole: hole.start)
        if index == len(self._free) or self._free[index].start != extent.end or self._free[index].length < missing:
            return None
        hole = self._free[index]
        rest = Extent(hole.start + missing, hole.length - missing)
        self._free[index : index + 1] = [rest] if rest.length else []
        return Extent(extent.start, length)

    def reserve(self, needed: int, held: Extent | None = None) -> Extent | None:
        """Room for `needed` tokens and, where there is some, to grow; None when no hole holds as many.

        It is what is `held` already, made longer, or else another extent, and then `held` is still to be freed.
        """
        wanted = (needed + GROWTH_TOKENS, needed)
        grown = (self.grow(held, length) for length in wanted if held is not None)
        elsewhere = (self.allocate(length) for length in wanted)
        return next((extent for extent in chain(grown, elsewhere) if extent is not None), None)

    def free(self, extent: Extent) -> None:
        """Take an extent back and join it with the holes it touches."""
        index = bisect_left(self._free, extent.start, key=lambda hole: hole.start)
        start, end, first, last = extent.start, extent.end, index, index
        if index > 0 and self._free[index - 1].end == start:
            first, start = index - 1, self._free[index - 1].start
        if index < len(self._free) and self._free[index].start == end:
            last, end = index + 1, self._free[index].end
        self._free[first:last] = [Extent(start, end - start)]

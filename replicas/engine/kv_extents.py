"""Who holds which stretch of the KV arena? A pure allocator of contiguous extents."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass


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

    def free(self, extent: Extent) -> None:
        """Take an extent back and join it with the holes it touches."""
        index = bisect_left(self._free, extent.start, key=lambda hole: hole.start)
        start, end, first, last = extent.start, extent.end, index, index
        if index > 0 and self._free[index - 1].end == start:
            first, start = index - 1, self._free[index - 1].start
        if index < len(self._free) and self._free[index].start == end:
            last, end = index + 1, self._free[index].end
        self._free[first:last] = [Extent(start, end - start)]

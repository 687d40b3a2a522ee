from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.engine.kv_extents import Extent, KvExtents

CAPACITY = 60


class SlowTwin:
    """The same arena as one owner per place."""

    def __init__(self) -> None:
        self.places: list[int | None] = [None] * CAPACITY

    def take(self, owner: int, extent: Extent) -> None:
        assert extent.start >= 0
        assert extent.end <= CAPACITY
        for place in range(extent.start, extent.end):
            assert self.places[place] in (None, owner), "an extent overlaps another"
            self.places[place] = owner

    def release(self, owner: int) -> None:
        self.places = [None if place == owner else place for place in self.places]

    def longest_hole(self) -> int:
        marks = "".join("." if place is None else "#" for place in self.places)
        return max(len(hole) for hole in marks.split("#"))

    def room_behind(self, extent: Extent) -> int:
        room = 0
        while extent.end + room < CAPACITY and self.places[extent.end + room] is None:
            room += 1
        return room


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["allocate", "grow", "free"]), st.integers(1, 20)), max_size=60))
def test_any_history_agrees_with_one_owner_per_place(history: list[tuple[str, int]]) -> None:
    extents, twin = KvExtents(CAPACITY), SlowTwin()
    held: dict[int, Extent] = {}
    for owner, (action, number) in enumerate(history):
        chosen = list(held)[number % len(held)] if held else None
        if action == "allocate":
            fits = twin.longest_hole() >= number
            extent = extents.allocate(number)
            assert (extent is not None) == fits
            if extent is not None:
                assert extent.length == number
                twin.take(owner, extent)
                held[owner] = extent
        elif chosen is not None and action == "grow":
            before = held[chosen]
            fits = twin.room_behind(before) >= number
            grown = extents.grow(before, before.length + number)
            assert (grown is not None) == fits
            if grown is not None:
                assert grown == Extent(before.start, before.length + number)
                twin.take(chosen, grown)
                held[chosen] = grown
        elif chosen is not None:
            extents.free(held.pop(chosen))
            twin.release(chosen)
        assert extents.free_tokens == twin.places.count(None)
    for extent in held.values():
        extents.free(extent)
    assert extents.allocate(CAPACITY) == Extent(0, CAPACITY), "freed places did not join up again"


def test_the_smallest_hole_that_fits_is_taken() -> None:
    extents = KvExtents(30)
    first, _, third, _ = (extents.allocate(length) for length in (8, 2, 5, 15))
    assert first
    assert third
    extents.free(first)
    extents.free(third)
    assert extents.allocate(4) == Extent(10, 4)
    assert extents.used_tokens == 21

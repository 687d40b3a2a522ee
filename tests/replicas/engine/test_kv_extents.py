from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.engine.kv_extents import GROWTH_TOKENS, Extent, KvExtents

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


def test_what_is_reserved_has_room_to_grow_where_there_is_some_and_stays_in_its_place_where_it_can() -> None:
    extents = KvExtents(4 * GROWTH_TOKENS)
    first = extents.reserve(10)
    assert first == Extent(0, 10 + GROWTH_TOKENS)
    assert extents.reserve(20 + GROWTH_TOKENS, first) == Extent(0, 20 + 2 * GROWTH_TOKENS)


def test_without_room_to_grow_only_what_is_needed_is_reserved_elsewhere_if_it_must_be() -> None:
    extents = KvExtents(100)
    first, second = extents.reserve(30, None), extents.allocate(6)
    assert first == Extent(0, 30 + GROWTH_TOKENS)
    assert second == Extent(94, 6)
    extents.free(first)
    assert extents.reserve(7, second) == Extent(0, 7 + GROWTH_TOKENS)
    assert extents.reserve(7, second) == Extent(71, 7)
    assert extents.reserve(17, second) is None

"""What grows in a process that should be the same after every load? Our own containers, memory, open descriptors."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

OURS = ("fleet.", "replicas.", "router.", "canary.", "deploy.")
MEMORY_SLACK = 0.05
MEMORY_SLACK_BYTES = 24 * 2**20
"""Allocators keep pages that they had at a peak."""
DESCRIPTOR_SLACK = 2


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at an idle process."""

    sizes: Mapping[str, int]
    """Elements of the containers that our objects hold, by class and attribute."""
    memory_bytes: int
    descriptors: int


def container_sizes(roots: Iterable[object]) -> dict[str, int]:
    """Elements in every container that can be reached from `roots` through objects of this project.

    Containers of all objects of a class are added up under "Class.attribute"; what lies in a container counts under
    the container's own name.
    """
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    waiting: deque[tuple[str, object]] = deque((type(root).__name__, root) for root in roots)
    while waiting:
        name, value = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict | list | set | deque):
            sizes[name] += len(value)
        waiting.extend(_parts(name, value))
    return dict(sizes)


def grown(readings: Sequence[Reading], memory_slack_bytes: int = MEMORY_SLACK_BYTES) -> list[str]:
    """What is larger at the end than it was early on; the first reading, of a process not yet warm, does not count.

    A container grew if the last reading is above all of the first half; memory and descriptors are compared by the
    medians of their thirds. Needs four readings, and for memory a run so long that oneDNN has met every number of rows:
    it keeps a compiled kernel for each, up to 1024.
    """
    if len(readings) < 4:
        raise ValueError(f"growth shows in four readings or more, not in {len(readings)}")
    warm = readings[1:]
    early = warm[: (len(warm) + 1) // 2]
    problems = []
    for name, size in sorted(warm[-1].sizes.items()):
        before = max(reading.sizes.get(name, 0) for reading in early)
        if size > before:
            problems.append(f"{name} holds {size} elements, {before} earlier")
    first, last = _outer_thirds([reading.memory_bytes for reading in warm])
    if last > first * (1 + MEMORY_SLACK) + memory_slack_bytes:
        problems.append(f"memory rose from {first / 2**20:.0f} to {last / 2**20:.0f} MiB")
    first, last = _outer_thirds([reading.descriptors for reading in warm])
    if last > first + DESCRIPTOR_SLACK:
        problems.append(f"open descriptors rose from {first:.0f} to {last:.0f}")
    return problems


def _outer_thirds(values: Sequence[int]) -> tuple[float, float]:
    """Medians of the first and of the last third."""
    third = max(1, len(values) // 3)
    return statistics.median(values[:third]), statistics.median(values[-third:])


def _parts(name: str, value: object) -> Iterator[tuple[str, object]]:
    """What a container holds, or an object of ours refers to."""
    if isinstance(value, dict):
        yield from ((name, item) for item in tuple(value.values()))
    elif isinstance(value, list | set | deque | tuple):
        yield from ((name, item) for item in tuple(value))
    elif type(value).__module__.startswith(OURS) and not isinstance(value, type):
        owner = type(value).__name__
        yield from ((f"{owner}.{attribute}", part) for attribute, part in _attributes(value))


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    yield from tuple(getattr(value, "__dict__", {}).items())
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, slot):
                yield slot, getattr(value, slot)

"""What grows in a process that should be the same after every load? Our own containers, memory, open descriptors."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import theilslopes

OURS = ("fleet.", "replicas.", "router.", "canary.", "deploy.")
UNSTEADY = ("Occurrences._latest", "TargetSession._to_close")
"""Bounded, but not the same at every rest: pairs of tokens in remembered texts, and closings that a draft will be told
when it is next spoken to."""
SLOPE_SLACK = 8.0
"""MiB per 1,000 requests."""
RISE_SLACK = 6.0
"""MiB in all. Less is not told from the allocator's habits."""
DESCRIPTOR_SLACK = 2


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at an idle process."""

    requests: int
    """That it has seen so far."""
    sizes: Mapping[str, int]
    """Elements of the containers that our objects hold, by class and attribute."""
    memory_bytes: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Slope:
    """MiB per 1,000 requests, with its 95 % interval."""

    estimate: float
    low: float
    high: float


def reachable(roots: Iterable[object]) -> Iterator[tuple[str, object]]:
    """Every value that `roots` lead to through objects of this project and containers, once, with its name.

    What an object refers to is called "Class.attribute", what lies in a container like the container.
    """
    seen: set[int] = set()
    waiting: deque[tuple[str, object]] = deque((type(root).__name__, root) for root in roots)
    while waiting:
        name, value = waiting.popleft()
        if id(value) not in seen:
            seen.add(id(value))
            yield name, value
            waiting.extend(_parts(name, value))


def container_sizes(roots: Iterable[object]) -> dict[str, int]:
    """Elements in every container that can be reached from `roots`, those of one name added up."""
    sizes: Counter[str] = Counter()
    for name, value in reachable(roots):
        if isinstance(value, dict | list | set | deque):
            sizes[name] += len(value)
    return dict(sizes)


def settled(readings: Sequence[Reading]) -> Sequence[Reading]:
    """The readings without the first third, in which a process warms up: pools fill, caches and histories too."""
    if len(readings) < 6:
        raise ValueError(f"growth shows in six readings or more, not in {len(readings)}")
    return readings[len(readings) // 3 :]


def memory_slope(readings: Sequence[Reading]) -> Slope:
    """How memory rises with requests, after the warm-up.

    The Theil-Sen estimator and Sen's interval by ranks (Sen 1968, Journal of the American Statistical Association
    63:1379): an allocator's single jump does not count as a trend. Needs six readings.
    """
    warm = settled(readings)
    memory = [reading.memory_bytes / 2**20 for reading in warm]
    found = theilslopes(memory, [reading.requests / 1000 for reading in warm], alpha=0.95)
    return Slope(float(found.slope), float(found.low_slope), float(found.high_slope))


def grown(readings: Sequence[Reading]) -> list[str]:
    """What is larger at the end than it was after the warm-up.

    A container grew if the last reading is above all of the first half, descriptors are compared by the medians of
    their outer thirds, and of memory the whole interval of the slope must lie above its slack, and all it comes to
    above another. Needs six readings.
    """
    warm = settled(readings)
    early = warm[: (len(warm) + 1) // 2]
    problems = []
    for name, size in sorted(warm[-1].sizes.items()):
        before = max(reading.sizes.get(name, 0) for reading in early)
        if size > before and name not in UNSTEADY:
            problems.append(f"{name} holds {size} elements, {before} earlier")
    slope = memory_slope(readings)
    rise = slope.estimate * (warm[-1].requests - warm[0].requests) / 1000
    if slope.low > SLOPE_SLACK and rise > RISE_SLACK:
        problems.append(
            f"memory rises by {slope.estimate:.0f} MiB in 1,000 requests ({slope.low:.0f} – {slope.high:.0f})"
        )
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

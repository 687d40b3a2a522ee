"""Where does the time of a decoding step go? Shares of its parts, from a profile of every operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from torch.profiler import ProfilerActivity, profile, record_function

from replicas.engine.fused import kernels

FORWARD = "bench: forward"
SAMPLER = "bench: sampler"
"""Ranges that the measured engine records around its two parts."""
LINEAR, ATTENTION, POINTWISE = "linear layers", "attention and cache", "norms, activations, rotation"
BETWEEN, SAMPLING, ENGINE = "Python in the forward pass", "sampler", "the engine's own Python"
PARTS = (LINEAR, ATTENTION, POINTWISE, BETWEEN, SAMPLING, ENGINE)
KERNELS = {
    "add_and_norm": POINTWISE,
    "rotate_and_cache": ATTENTION,
    "attend": ATTENTION,
    "gate": POINTWISE,
}
"""The compiled ones, by their names in `kernels`; no operations of torch, so each is recorded as a range."""
PART_OF = {
    "quantized::linear_dynamic_fp16": LINEAR,
    "mkldnn::_linear_pointwise": LINEAR,
    "aten::linear": LINEAR,
    "aten::pad": LINEAR,
    "aten::bmm": ATTENTION,
    "aten::baddbmm": ATTENTION,
    "aten::softmax": ATTENTION,
    "aten::scaled_dot_product_attention": ATTENTION,
    "aten::index_copy_": ATTENTION,
    "aten::index_select": ATTENTION,
    **KERNELS,
}
"""Of what the forward pass calls from its first linear layer on; all else is pointwise, embedding too."""

Shares = Mapping[str, float]


class Event(Protocol):
    """One operation or range of a profile, with what it called; times in microseconds."""

    name: str
    cpu_children: Sequence[Event]

    @property
    def cpu_time_total(self) -> float:
        """With its children."""

    @property
    def self_cpu_time_total(self) -> float:
        """Without them."""


def profiled(work: Callable[[], float]) -> Shares:
    """Each part's share of the seconds that `work` says it took."""
    with profile(activities=[ProfilerActivity.CPU]) as found, recorded_kernels():
        seconds = work()
    return shares(found.events(), seconds)


@contextmanager
def recorded_kernels() -> Iterator[None]:
    """Meanwhile each call of a compiled kernel is a range of that name, which makes it some 10 µs longer."""
    plain = {name: getattr(kernels, name) for name in KERNELS}
    for name, kernel in plain.items():
        setattr(kernels, name, record_function(name)(kernel))
    try:
        yield
    finally:
        for name, kernel in plain.items():
            setattr(kernels, name, kernel)


def shares(events: Iterable[Event], seconds: float) -> Shares:
    """Parts of so many seconds; what lies in neither range is the engine's own."""
    spent: defaultdict[str, float] = defaultdict(float)
    for event in events:
        if event.name == SAMPLER:
            spent[SAMPLING] += event.cpu_time_total
        elif event.name == FORWARD:
            spent[BETWEEN] += event.self_cpu_time_total
            for part, child in _parts(event.cpu_children):
                spent[part] += child.cpu_time_total
    spent[ENGINE] = 1e6 * seconds - sum(spent.values())
    return {part: spent[part] / (1e6 * seconds) for part in PARTS}


def _parts(called: Sequence[Event]) -> Iterator[tuple[str, Event]]:
    """The part of each call of a forward pass, in their order. Some embed with what others gather keys with."""
    is_embedding = True
    for event in called:
        part = PART_OF.get(event.name, POINTWISE)
        is_embedding = is_embedding and part != LINEAR
        yield POINTWISE if is_embedding else part, event


def table(found: Mapping[int, Shares]) -> Iterator[str]:
    """Markdown: a row for each number of sequences."""
    yield f"| sequences | {' | '.join(PARTS)} |"
    yield "|---" * (1 + len(PARTS)) + "|"
    for sequences, parts in found.items():
        yield f"| {sequences} | {' | '.join(f'{parts[part]:.0%}' for part in PARTS)} |"

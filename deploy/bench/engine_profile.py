"""Where does the time of a decoding step go? Shares of its parts, from a profile of every operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from torch.profiler import ProfilerActivity, profile

FORWARD = "bench: forward"
SAMPLER = "bench: sampler"
"""Ranges that the measured engine records around its two parts."""
LINEAR, ATTENTION, POINTWISE = "linear layers", "attention and cache", "norms, activations, rotation"
BETWEEN, SAMPLING, ENGINE = "Python in the forward pass", "sampler", "the engine's own Python"
PARTS = (LINEAR, ATTENTION, POINTWISE, BETWEEN, SAMPLING, ENGINE)
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
}
"""Of the operations that the forward pass calls; all others are pointwise."""

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
    with profile(activities=[ProfilerActivity.CPU]) as found:
        seconds = work()
    return shares(found.events(), seconds)


def shares(events: Iterable[Event], seconds: float) -> Shares:
    """Parts of so many seconds; what lies in neither range is the engine's own."""
    spent: defaultdict[str, float] = defaultdict(float)
    for event in events:
        if event.name == SAMPLER:
            spent[SAMPLING] += event.cpu_time_total
        elif event.name == FORWARD:
            spent[BETWEEN] += event.self_cpu_time_total
            for child in event.cpu_children:
                spent[PART_OF.get(child.name, POINTWISE)] += child.cpu_time_total
    spent[ENGINE] = 1e6 * seconds - sum(spent.values())
    return {part: spent[part] / (1e6 * seconds) for part in PARTS}


def table(found: Mapping[int, Shares]) -> Iterator[str]:
    """Markdown: a row for each number of sequences."""
    yield f"| sequences | {' | '.join(PARTS)} |"
    yield "|---" * (1 + len(PARTS)) + "|"
    for sequences, parts in found.items():
        yield f"| {sequences} | {' | '.join(f'{parts[part]:.0%}' for part in PARTS)} |"

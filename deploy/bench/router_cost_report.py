"""What the trials of `router_cost.py` say: latency, throughput and CPU time per token, beside each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import median

import numpy as np
from rich.table import Table

from deploy.bench.sse_probe import Arrivals

ON_THE_WAY = ("proxy", "router", "worker")
"""The processes that a token passes; their CPU time is the cost of the whole path."""
OFF_THE_WAY = ("ray", "client")
"""Ray itself with the fleet's controller, and the reader that measures."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One variant at one pace, once. Latencies in seconds."""

    variant: str
    pace: str
    tokens: int
    tokens_per_second: float
    """While all streams were open."""
    cpu_seconds: Mapping[str, float]
    """By role, from before the first request to after the last token."""
    ttft: float
    """Median."""
    itl_p95: float
    added_itl_p95: float
    """The reader's p95 less that of the worker's own emission."""
    transit_p95: float
    """From the worker's emission to the reader."""

    @property
    def tokens_per_core_second(self) -> float:
        return self.tokens / sum(self.cpu_seconds[role] for role in ON_THE_WAY)

    @property
    def tokens_per_router_second(self) -> float:
        return self.tokens / self.cpu_seconds["router"]


def summarise(
    variant: str, pace: str, arrivals: Sequence[Arrivals], started: int, cpu_seconds: Mapping[str, float]
) -> Trial:
    """The figures of streams that were requested at `started`, in nanoseconds of the clock of their stamps."""
    begin = max(stream.arrived[0] for stream in arrivals)
    end = min(stream.arrived[-1] for stream in arrivals)
    together = sum(begin < at <= end for stream in arrivals for at in stream.arrived)
    itl_p95 = _gap_p95(stream.arrived for stream in arrivals)
    transit = [there - here for stream in arrivals for here, there in zip(stream.emitted, stream.arrived, strict=True)]
    return Trial(
        variant=variant,
        pace=pace,
        tokens=len(transit),
        tokens_per_second=together * 1e9 / (end - begin) if end > begin else 0.0,
        cpu_seconds=cpu_seconds,
        ttft=median(stream.arrived[0] - started for stream in arrivals) / 1e9,
        itl_p95=itl_p95,
        added_itl_p95=itl_p95 - _gap_p95(stream.emitted for stream in arrivals),
        transit_p95=float(np.quantile(transit, 0.95)) / 1e9,
    )


_ROWS = (
    ("tokens/s, as fast as it can", "unpaced", "tokens_per_second", 1.0),
    ("tokens per CPU second of the whole path", "unpaced", "tokens_per_core_second", 1.0),
    ("tokens per CPU second of the router", "unpaced", "tokens_per_router_second", 1.0),
    ("ITL p95 at 10 ms per token, ms", "paced", "itl_p95", 1000.0),
    ("  added by the path, ms", "paced", "added_itl_p95", 1000.0),
    ("emission to reader p95, ms", "paced", "transit_p95", 1000.0),
    ("TTFT p50, ms", "paced", "ttft", 1000.0),
)


def render(trials: Sequence[Trial]) -> Table:
    """Medians over the repetitions, with the smallest and the largest value; one column per variant."""
    by_key = defaultdict(list)
    for trial in trials:
        by_key[trial.variant, trial.pace].append(trial)
    variants = list(dict.fromkeys(trial.variant for trial in trials))
    table = Table(title="Cost of the token path: median (smallest – largest)")
    table.add_column("")
    for variant in variants:
        table.add_column(variant, justify="right")
    for label, pace, name, scale in _ROWS:
        cells = ([getattr(trial, name) * scale for trial in by_key[variant, pace]] for variant in variants)
        table.add_row(label, *map(_cell, cells))
    for role in (*ON_THE_WAY, *OFF_THE_WAY):
        cells = ([1e6 * trial.cpu_seconds[role] / trial.tokens for trial in by_key[key, "unpaced"]] for key in variants)
        table.add_row(f"CPU of {role}, µs per token", *map(_cell, cells))
    return table


def _cell(values: Sequence[float]) -> str:
    return f"{median(values):,.1f} ({min(values):,.1f} – {max(values):,.1f})"


def _gap_p95(streams: Iterable[Sequence[int]]) -> float:
    gaps = [later - sooner for sooner, later in chain.from_iterable(map(pairwise, streams))]
    return float(np.quantile(gaps, 0.95)) / 1e9

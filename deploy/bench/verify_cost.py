"""What does it cost to verify k rows instead of 1? It decides how much a given accepted length can bring at best."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from deploy.bench.devices import settle
from deploy.bench.document import present
from deploy.bench.options import count
from deploy.evidence.bootstrap import MIN_ROUNDS, PairedEffect
from fleet.config import DEFAULT_MODEL, EngineConfig, ModelConfig
from replicas.engine.model import Model
from replicas.engine.packing import Segment
from replicas.target_model import load_target

MARKS = "bench-verify-cost"
MOST_ROWS = 9
LENGTHS = (1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
"""Tokens of a round, the target's own included."""
GOALS = ((1, 1.8), (8, 1.4))
"""Sequences, and the speed-up that is wanted of the best proposer there."""
CHUNK_TOKENS = 256
SEED = 1

Seconds = dict[tuple[int, int], float]
"""Of one forward pass, by sequences and rows of each."""
Samples = dict[tuple[int, int], list[float]]
"""All passes of a shape, one for each turn."""


def step_samples(
    model: Model, sequences: Sequence[int], rows: Sequence[int], context: int, repetitions: int
) -> Samples:
    """Seconds of passes over so many sequences with `context` cached tokens and so many rows each.

    All shapes are taken in turns, so that a drift of the machine meets them alike; the first turn is warm-up.
    """
    found: Samples = defaultdict(list)
    stride = context + max(rows)
    _fill(model, max(sequences), stride, context)
    for repetition in range(repetitions + 1):
        for width in sequences:
            for length in rows:
                segments = [Segment(index * stride, context, (1,) * length, length) for index in range(width)]
                settle()
                began = time.perf_counter()
                model.forward(segments)
                settle()
                if repetition:
                    found[width, length].append(time.perf_counter() - began)
    return dict(found)


def medians(samples: Samples) -> Seconds:
    """The usual pass of each shape."""
    return {shape: statistics.median(seconds) for shape, seconds in samples.items()}


def _fill(model: Model, sequences: int, stride: int, context: int) -> None:
    for index in range(sequences):
        for first in range(0, context, CHUNK_TOKENS):
            model.forward([Segment(index * stride, first, (1,) * min(CHUNK_TOKENS, context - first), 1)])


def table(samples: Samples) -> Iterator[str]:
    """Markdown: the price of k rows beside 1, the speed-up that a free draft would bring, and what the goals take."""
    bounds = " | ".join(f"limit at {length:g}" for length in LENGTHS)
    yield f"| sequences | rows of each | ms (smallest – largest) | beside 1 row (95 %) | {bounds} |"
    yield "|---" * (4 + len(LENGTHS)) + "|"
    ratios = {(width, rows): _ratio(samples[width, rows], samples[width, 1]) for width, rows in sorted(samples)}
    for (width, rows), ratio in ratios.items():
        limits = (f"{length / ratio:.2f}" if length <= rows else "–" for length in LENGTHS)
        shown = "1" if rows == 1 else f"{ratio:.2f}{_interval(samples[width, rows], samples[width, 1])}"
        yield f"| {width} | {rows} | {_milliseconds(samples[width, rows])} | {shown} | {' | '.join(limits)} |"
    yield ""
    yield from _goals(ratios)


def _goals(ratios: Mapping[tuple[int, int], float]) -> Iterator[str]:
    """A draft of k tokens commits k + 1 at most, so a length above its rows is out of reach."""
    for width, speed_up in GOALS:
        lengths = {rows: speed_up * ratio for (at, rows), ratio in ratios.items() if at == width and rows > 1}
        reachable = [f"{length:.2f} ({rows - 1})" for rows, length in lengths.items() if length <= rows]
        if reachable:
            yield (
                f"What {speed_up:g} × at {width} takes of a proposer that costs nothing, as accepted length (drafts): "
                f"{', '.join(reachable)}."
            )
        elif lengths:
            yield f"{speed_up:g} × at {width} is beyond even a proposer that costs nothing."


def _ratio(seconds: Sequence[float], beside: Sequence[float]) -> float:
    """The geometric mean over turns of the ratio in the same turn."""
    return math.exp(statistics.fmean(_logs(seconds, beside)))


def _interval(seconds: Sequence[float], beside: Sequence[float]) -> str:
    """Of that ratio; nothing where there are too few turns for one."""
    if len(seconds) < MIN_ROUNDS:
        return ""
    found = PairedEffect(_logs(seconds, beside), SEED).ratio()
    return f" ({found.low:.2f} – {found.high:.2f})"


def _logs(seconds: Sequence[float], beside: Sequence[float]) -> list[float]:
    return [math.log(one / other) for one, other in zip(seconds, beside, strict=True)]


def _milliseconds(seconds: Sequence[float]) -> str:
    middle, least, most = (1000 * each for each in (statistics.median(seconds), min(seconds), max(seconds)))
    return f"{middle:.1f} ({least:.1f} – {most:.1f})"


def main() -> None:
    """Time of a target step by rows, and the speed-up that it allows."""
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.verify_cost", description=main.__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--sequences", type=count, nargs="+", default=[1, 4, 8])
    parser.add_argument("--context", type=count, default=256, help="tokens cached before the rows")
    parser.add_argument("--repetitions", type=count, default=10)
    parser.add_argument("--into", type=Path, help="a document with the marks, such as docs/benchmarks.md")
    arguments = parser.parse_args()
    present(lambda: [*table(_measured(arguments)), ""], arguments.into, MARKS)


def _measured(arguments: argparse.Namespace) -> Samples:
    most = max(arguments.sequences)
    room = most * (arguments.context + MOST_ROWS)
    engine = EngineConfig(device=arguments.device, max_num_seqs=most, kv_cache_tokens=max(room, 64))
    model = ModelConfig(model=arguments.model, dtype=arguments.dtype)
    target = load_target(model, engine, lambda line: None)
    rows = range(1, MOST_ROWS + 1)
    return step_samples(target.model, arguments.sequences, rows, arguments.context, arguments.repetitions)


if __name__ == "__main__":
    main()

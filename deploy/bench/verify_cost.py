"""What does it cost to verify k rows instead of 1? It decides how much a given accepted length can bring at best."""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.bench.devices import settle
from deploy.bench.document import present
from deploy.bench.options import count
from fleet.config import DEFAULT_MODEL, EngineConfig, ModelConfig
from replicas.engine.model import Model, Segment
from replicas.target_model import load_target

MARKS = "bench-verify-cost"
MOST_ROWS = 9
LENGTHS = (1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
"""Tokens of a round, the target's own included."""
CHUNK_TOKENS = 256

Seconds = dict[tuple[int, int], float]
"""Of one forward pass, by sequences and rows of each."""


def step_seconds(
    model: Model, sequences: Sequence[int], rows: Sequence[int], context: int, repetitions: int
) -> Seconds:
    """Median seconds of a pass over so many sequences with `context` cached tokens and so many rows each.

    All shapes are taken in turns, so that a drift of the machine meets them alike; the first turn is warm-up.
    """
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
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
    return {key: statistics.median(values) for key, values in found.items()}


def _fill(model: Model, sequences: int, stride: int, context: int) -> None:
    for index in range(sequences):
        for first in range(0, context, CHUNK_TOKENS):
            model.forward([Segment(index * stride, first, (1,) * min(CHUNK_TOKENS, context - first), 1)])


def table(seconds: Seconds) -> Iterator[str]:
    """Markdown: the price of k rows beside 1, and the speed-up that a free draft would bring at an accepted length."""
    bounds = " | ".join(f"limit at {length:g}" for length in LENGTHS)
    yield f"| sequences | rows of each | ms | beside 1 row | {bounds} |"
    yield "|---" * (4 + len(LENGTHS)) + "|"
    for (sequences, rows), value in sorted(seconds.items()):
        ratio = value / seconds[sequences, 1]
        limits = (f"{length / ratio:.2f}" if length <= rows else "–" for length in LENGTHS)
        yield f"| {sequences} | {rows} | {1000 * value:.1f} | {ratio:.2f} | {' | '.join(limits)} |"


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


def _measured(arguments: argparse.Namespace) -> Seconds:
    most = max(arguments.sequences)
    room = most * (arguments.context + MOST_ROWS)
    engine = EngineConfig(device=arguments.device, max_num_seqs=most, kv_cache_tokens=max(room, 64))
    model = ModelConfig(model=arguments.model, dtype=arguments.dtype)
    target = load_target(model, engine, lambda line: None)
    rows = range(1, MOST_ROWS + 1)
    return step_seconds(target.model, arguments.sequences, rows, arguments.context, arguments.repetitions)


if __name__ == "__main__":
    main()

"""How does the engine compare with others? Each arm's rates over the repetitions, and their ratio in the same turn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deploy.evidence.bootstrap import MIN_ROUNDS, PairedEffect

SEED = 1


@dataclass(frozen=True, slots=True)
class Run:
    """Equal greedy requests that began together."""

    sequences: int
    prefill_seconds: float
    """Until every sequence had its first token."""
    decode_seconds: float
    """For all tokens after the first."""
    max_tokens: int
    parts: tuple[float, float] = (0.0, 0.0)
    """Of the decode: seconds in the forward pass and in the sampler."""

    @property
    def decode_rate(self) -> float:
        """Tokens per second of all sequences together."""
        return self.sequences * (self.max_tokens - 1) / self.decode_seconds


Runs = dict[tuple[int, str], list[Run]]
"""By number of sequences (0: one long prompt, of which the prefill counts) and arm, one run per repetition."""


def tables(runs: Runs, ours: str, long_prompt_tokens: int) -> Iterator[str]:
    """Markdown: rates (median, smallest to largest) and the ratio of our arm to each, then where our step goes.

    The ratio is that of the same turn, with its 95 % interval from five turns on, else with its extremes.
    """
    yield f"| load | arm | tokens/s | {ours} against it |"
    yield "|---|---|---|---|"
    for (sequences, name), found in sorted(runs.items()):
        rates, our_rates = (
            [run.decode_rate if sequences else long_prompt_tokens / run.prefill_seconds for run in some]
            for some in (found, runs[sequences, ours])
        )
        ratios = [mine / other for mine, other in zip(our_rates, rates, strict=True)]
        ratio = "–" if name == ours else f"**{_interval(ratios)}**"
        yield f"| {_load(sequences)} | {name} | {_spread(rates, 1)} | {ratio} |"
    yield ""
    yield "| load | ms a step | forward | sampler | rest |"
    yield "|---|---|---|---|---|"
    for (sequences, name), found in sorted(runs.items()):
        if sequences and name == ours:
            step, *parts = (1000 * part for part in _step(found))
            cells = " | ".join(f"{part:.2f}" for part in (step, *parts, step - sum(parts)))
            yield f"| {_load(sequences)} | {cells} |"


def goals(runs: Runs, ours: str, rival: str) -> Iterator[str]:
    """Is our decoding at least as fast as the rival's? In words, for every load; or that it was not measured."""
    loads = sorted(sequences for sequences, name in runs if name == rival and sequences)
    if not loads:
        yield f"{rival} was not measured: `VLLM_PYTHON` named no environment."
    for sequences in loads:
        pairs = zip(runs[sequences, ours], runs[sequences, rival], strict=True)
        ratios = [mine.decode_rate / other.decode_rate for mine, other in pairs]
        low, high = _bounds(ratios)
        verdict = "reached" if low >= 1 else "missed" if high < 1 else "neither reached nor missed for certain"
        verdict = verdict if len(ratios) >= MIN_ROUNDS else "too few turns"
        yield f"- at least 1.0 × {rival}, {_load(sequences)}: {verdict}, {_interval(ratios)}"


def _load(sequences: int) -> str:
    return {0: "prefill", 1: "1 sequence"}.get(sequences, f"{sequences} sequences")


def _spread(values: Sequence[float], digits: int) -> str:
    middle, least, most = (f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({least} – {most})"


def _interval(ratios: Sequence[float]) -> str:
    low, high = _bounds(ratios)
    return f"{statistics.geometric_mean(ratios):.2f} ({low:.2f} – {high:.2f})"


def _bounds(ratios: Sequence[float]) -> tuple[float, float]:
    if len(ratios) < MIN_ROUNDS:
        return min(ratios), max(ratios)
    found = PairedEffect([math.log(ratio) for ratio in ratios], SEED).ratio()
    return found.low, found.high


def _step(runs: Sequence[Run]) -> tuple[float, float, float]:
    """Of the median run, per step: seconds of all, of the forward pass and of the sampler."""
    middle = statistics.median_low(run.decode_seconds for run in runs)
    run = next(run for run in runs if run.decode_seconds == middle)
    steps = run.max_tokens - 1
    return run.decode_seconds / steps, run.parts[0] / steps, run.parts[1] / steps

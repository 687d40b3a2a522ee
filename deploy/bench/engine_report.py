"""How does the engine compare with others? Each arm's rates over the repetitions, and their ratio in the same turn."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


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
    """Markdown: rates (median, smallest to largest) and the ratio of our arm to each, then where our step goes."""
    yield f"| load | arm | tokens/s | {ours} against it |"
    yield "|---|---|---|---|"
    for (sequences, name), found in sorted(runs.items()):
        rates, our_rates = (
            [run.decode_rate if sequences else long_prompt_tokens / run.prefill_seconds for run in some]
            for some in (found, runs[sequences, ours])
        )
        ratios = [mine / other for mine, other in zip(our_rates, rates, strict=True)]
        ratio = "–" if name == ours else f"**{_spread(ratios, 2)}**"
        yield f"| {_load(sequences)} | {name} | {_spread(rates, 1)} | {ratio} |"
    yield ""
    yield "| load | ms a step | forward | sampler | rest |"
    yield "|---|---|---|---|---|"
    for (sequences, name), found in sorted(runs.items()):
        if sequences and name == ours:
            step, *parts = (1000 * part for part in _step(found))
            cells = " | ".join(f"{part:.2f}" for part in (step, *parts, step - sum(parts)))
            yield f"| {_load(sequences)} | {cells} |"


def _load(sequences: int) -> str:
    return {0: "prefill", 1: "1 sequence"}.get(sequences, f"{sequences} sequences")


def _spread(values: Sequence[float], digits: int) -> str:
    middle, least, most = (f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({least} – {most})"


def _step(runs: Sequence[Run]) -> tuple[float, float, float]:
    """Of the median run, per step: seconds of all, of the forward pass and of the sampler."""
    middle = statistics.median_low(run.decode_seconds for run in runs)
    run = next(run for run in runs if run.decode_seconds == middle)
    steps = run.max_tokens - 1
    return run.decode_seconds / steps, run.parts[0] / steps, run.parts[1] / steps

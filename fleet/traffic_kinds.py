"""Which requests are alike? Kinds by prompt length, answer length and sampling, shared by evidence and live traffic."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.traffic import SamplingMode

PROMPT_EDGES = (256, 1024, 4096, 16384)
"""In tokens; what is longer than the last makes a bucket of its own."""
OUTPUT_EDGES = (32, 128, 512)


def kind_of(prompt_tokens: int, output_tokens: int, sampling: SamplingMode) -> str:
    """Such as 'greedy/≤256/≤32': sampling mode, prompt bucket, answer bucket."""
    return f"{sampling}/{bucket_of(prompt_tokens, PROMPT_EDGES)}/{bucket_of(output_tokens, OUTPUT_EDGES)}"


def sampling_of(kind: str) -> str:
    """The sampling mode of a kind."""
    return kind.partition("/")[0]


def shortest_prompt(kind: str) -> int:
    """The fewest tokens that the prompt of a request of this kind has."""
    bucket = kind.split("/")[1]
    edge = int(bucket[1:])
    if bucket.startswith(">"):
        return edge + 1
    return max((below + 1 for below in PROMPT_EDGES if below < edge), default=0)


def bucket_of(value: int, edges: Sequence[int]) -> str:
    """The first bucket that a length fits into."""
    return next((f"≤{edge}" for edge in edges if value <= edge), f">{edges[-1]}")

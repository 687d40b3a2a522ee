"""Which requests are alike? Buckets of prompt and answer length, in tokens."""

from __future__ import annotations

from collections.abc import Sequence

PROMPT_EDGES = (256, 1024, 4096, 16384)
OUTPUT_EDGES = (32, 128, 512)


def bucket_name(prompt_tokens: int, output_tokens: int) -> str:
    """Such as `prompt ≤1024, output ≤128`."""
    return f"prompt {_bucket(prompt_tokens, PROMPT_EDGES)}, output {_bucket(output_tokens, OUTPUT_EDGES)}"


def _bucket(value: int, edges: Sequence[int]) -> str:
    return next((f"≤{edge}" for edge in edges if value <= edge), f">{edges[-1]}")

"""How is a bucket of prompt and answer length called in a report?"""

from __future__ import annotations

from fleet.traffic_kinds import OUTPUT_EDGES, PROMPT_EDGES, bucket_of


def bucket_name(prompt_tokens: int, output_tokens: int) -> str:
    """Such as `prompt ≤1024, output ≤128`."""
    return f"prompt {bucket_of(prompt_tokens, PROMPT_EDGES)}, output {bucket_of(output_tokens, OUTPUT_EDGES)}"

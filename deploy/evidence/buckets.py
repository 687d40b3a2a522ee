"""Which bucket of prompt and answer length is a request of two arms in, and how is the bucket called?"""

from __future__ import annotations

from collections.abc import Iterable

from deploy.evidence.measured import MeasuredRequest
from fleet.traffic_kinds import OUTPUT_EDGES, PROMPT_EDGES, bucket_of


def bucket_name(prompt_tokens: int, output_tokens: int) -> str:
    """Such as `prompt ≤1024, output ≤128`."""
    return f"prompt {bucket_of(prompt_tokens, PROMPT_EDGES)}, output {bucket_of(output_tokens, OUTPUT_EDGES)}"


_ORDER = {
    bucket_name(prompt, output): place
    for place, (prompt, output) in enumerate(
        (prompt, output)
        for prompt in (*PROMPT_EDGES, PROMPT_EDGES[-1] + 1)
        for output in (*OUTPUT_EDGES, OUTPUT_EDGES[-1] + 1)
    )
}


def in_order(names: Iterable[str]) -> list[str]:
    """By length of prompt, then of answer, each name once."""
    return sorted(set(names), key=lambda name: (_ORDER.get(name, len(_ORDER)), name))


def shared_bucket(one: MeasuredRequest, other: MeasuredRequest) -> str | None:
    """The bucket of a request that two arms were asked: that of the longer complete answer; None where there is none.

    Both arms count alike. If the baseline's answer alone decided, an arm that draws its answers anew would seem to have
    fewer of whatever makes an answer long in the long buckets and more in the short ones, though nothing differs. And
    where one arm did not complete its answer the other's decides, so that no failure leaves the comparison.
    """
    done = [request for request in (one, other) if request.is_done]
    if not done:
        return None
    return bucket_name(max(item.prompt_tokens for item in done), max(item.output_tokens for item in done))

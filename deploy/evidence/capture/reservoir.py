"""Which requests stand for all? A uniform sample from each bucket, in bounded memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from deploy.evidence.buckets import bucket_name

LARGEST_CHARACTERS = 200_000
"""Of a request's messages; longer ones are left out."""


@dataclass(frozen=True, slots=True)
class CapturedRequest:
    """One request as it was made, scrubbed."""

    id: str
    category: str
    """Its bucket: lengths of prompt and answer, and whether it was greedy."""
    messages: list[dict[str, Any]]
    max_tokens: int | None
    sampling: dict[str, Any]
    stream: bool
    arrived_seconds: float
    """Since the capture began."""
    prompt_tokens: int
    output_tokens: int
    weight: float = 1.0
    """How many requests of its bucket it stands for."""


@dataclass(slots=True)
class Reservoirs:
    """At most `per_bucket` requests of each bucket, every request of a bucket as likely to be kept as any other.

    Algorithm R (Vitter, ACM TOMS 11(1), 1985). Rare buckets are kept whole, and so stand beside the frequent ones.
    """

    per_bucket: int
    draw: random.Random
    kept: dict[str, list[CapturedRequest]] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    """Requests of each bucket, kept or not."""

    def offer(self, request: CapturedRequest) -> None:
        bucket = self.kept.setdefault(request.category, [])
        number = self.seen[request.category] = self.seen.get(request.category, 0) + 1
        if len(bucket) < self.per_bucket:
            bucket.append(request)
        elif (place := self.draw.randrange(number)) < self.per_bucket:
            bucket[place] = request

    def requests(self) -> Iterator[CapturedRequest]:
        """What is kept, each with its weight: the inverse of its chance to be kept (Horvitz & Thompson, 1952)."""
        for name, bucket in sorted(self.kept.items()):
            weight = self.seen[name] / len(bucket)
            yield from (replace(request, weight=weight) for request in bucket)


def category_of(prompt_tokens: int, output_tokens: int, *, is_greedy: bool) -> str:
    return f"{bucket_name(prompt_tokens, output_tokens)}, {'greedy' if is_greedy else 'sampled'}"

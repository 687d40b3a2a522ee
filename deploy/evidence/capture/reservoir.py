"""Which requests stand for all? A uniform sample from each bucket, in bounded memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from json import dumps
from typing import Any, Final

from deploy.evidence.buckets import bucket_name

LARGEST_CHARACTERS: Final = 200_000
"""Of a request's messages; longer ones are left out."""
MEBIBYTE: Final = 1024 * 1024
FEWEST_MEBIBYTES: Final = 16
"""Each of the 40 buckets then has room for one of the longest requests."""


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

    def line(self) -> bytes:
        """As it is in a file. Half a surrogate pair, which JSON may hold and UTF-8 may not, becomes a question mark."""
        return (dumps(asdict(self), ensure_ascii=False) + "\n").encode(errors="replace")


class LeftOut(StrEnum):
    """Why a request that passed was not captured."""

    COMPLETION = "text completions, for a matrix asks chats: as a chat's message a prompt would be another text"
    UNWILLING = "of clients that send 'x-fleet-capture: off'"
    UNFINISHED = "refused, or with an answer that did not end as it should"
    NO_CHAT = "without messages that are a chat"
    TOO_LONG = f"with messages of more than {LARGEST_CHARACTERS:,} characters"


@dataclass(slots=True)
class Reservoirs:
    """At most `per_bucket` requests of each bucket, every request of a bucket as likely to be kept as any other.

    Algorithm R (Vitter, ACM TOMS 11(1), 1985). Rare buckets are kept whole, and so stand beside the frequent ones.

    Together they have at most `max_bytes` as lines of a file, each bucket an equal share of them: it keeps as many
    requests as would fit if all were as long as the longest that came. So the sizes of those that were drawn have no
    say, which would favour the short ones. Where that leaves room for fewer than are kept, some go, whichever chance
    takes; as a uniform sample of a uniform sample, what stays is one, and the next is drawn with capacity/seen as ever.
    """

    per_bucket: int
    draw: random.Random
    max_bytes: int = FEWEST_MEBIBYTES * MEBIBYTE
    kept: dict[str, list[CapturedRequest]] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    """Requests of each bucket, kept or not."""
    largest: dict[str, int] = field(default_factory=dict)
    """Bytes of the longest of them."""
    left_out: Counter[LeftOut] = field(default_factory=Counter)
    """Requests that are in no bucket."""

    def offer(self, request: CapturedRequest) -> None:
        name = request.category
        bucket = self.kept.setdefault(name, [])
        number = self.seen[name] = self.seen.get(name, 0) + 1
        self.largest[name] = max(self.largest.get(name, 0), len(request.line()))
        self._thin()
        capacity = self._capacity(name)
        if len(bucket) < capacity:
            bucket.append(request)
        elif (place := self.draw.randrange(number)) < capacity:
            bucket[place] = request

    def leave_out(self, reason: LeftOut) -> None:
        self.left_out[reason] += 1

    def requests(self) -> Iterator[CapturedRequest]:
        """What is kept, each with its weight: the inverse of its chance to be kept (Horvitz & Thompson, 1952)."""
        for name, bucket in sorted(self.kept.items()):
            yield from (replace(request, weight=self.seen[name] / len(bucket)) for request in bucket)

    def _capacity(self, name: str) -> int:
        return min(self.per_bucket, self.max_bytes // len(self.seen) // self.largest[name])

    def _thin(self) -> None:
        for name, bucket in self.kept.items():
            while len(bucket) > self._capacity(name):
                bucket.pop(self.draw.randrange(len(bucket)))


def category_of(prompt_tokens: int, output_tokens: int, *, is_greedy: bool) -> str:
    return f"{bucket_name(prompt_tokens, output_tokens)}, {'greedy' if is_greedy else 'sampled'}"

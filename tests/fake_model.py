"""A model without weights whose logits betray every slip of the KV cache."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from replicas.engine.model import Segment


class FakeModel:
    """Logits are a hash of exactly the tokens that the segment's extent holds; an unwritten place is noticed."""

    def __init__(self, *, vocab_size: int = 48, kv_tokens: int = 4096, max_model_len: int = 512) -> None:
        self.vocab_size = vocab_size
        self.kv_tokens = kv_tokens
        self.max_model_len = max_model_len
        self.arena: list[int | None] = [None] * kv_tokens
        self.largest_step = 0
        self.fails: list[BaseException] = []
        """Raised by the next forward passes, one each."""
        self.poisoned: set[int] = set()
        """Rows right behind such a token are not a number."""

    def forward(self, segments: Sequence[Segment]) -> Tensor:
        if self.fails:
            raise self.fails.pop(0)
        self.largest_step = max(self.largest_step, sum(len(segment.token_ids) for segment in segments))
        rows = [self._row(segment, length) for segment in segments for length in self._store(segment)]
        return torch.stack(rows) if rows else torch.empty((0, self.vocab_size))

    def move(self, source: int, target: int, length: int) -> None:
        self.arena[target : target + length] = self.arena[source : source + length]

    def _store(self, segment: Segment) -> range:
        """Write the segment's tokens; the context lengths whose logits are wanted."""
        first = segment.extent_start + segment.position
        end = segment.position + len(segment.token_ids)
        assert segment.extent_start + end <= self.kv_tokens
        self.arena[first : first + len(segment.token_ids)] = segment.token_ids
        return range(end - segment.logit_rows + 1, end + 1)

    def _row(self, segment: Segment, length: int) -> Tensor:
        context = self.arena[segment.extent_start : segment.extent_start + length]
        assert None not in context, "a place was read before it was written"
        if context[-1] in self.poisoned:
            return torch.full((self.vocab_size,), torch.nan)
        digest = hashlib.blake2b(repr(context).encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        return 3.0 * torch.randn(self.vocab_size, generator=generator)

"""A model without weights whose logits betray every slip of the KV cache."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from replicas.engine.model import Forward
from replicas.engine.packing import Segment


class FakeModel:
    """Logits are a hash of exactly the tokens that a row sees in the arena; an unwritten place is noticed."""

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

    def forward(self, segments: Sequence[Segment]) -> Forward:
        if self.fails:
            raise self.fails.pop(0)
        self.largest_step = max(self.largest_step, sum(len(segment.token_ids) for segment in segments))
        rows = [self._row(segment, row) for segment in segments for row in self._store(segment)]
        return Forward(torch.stack(rows) if rows else torch.empty((0, self.vocab_size)), None)

    def move(self, source: int, target: int, length: int) -> None:
        self.arena[target : target + length] = self.arena[source : source + length]

    def keep(self, start: int, rows: Sequence[int]) -> None:
        self.arena[start : start + len(rows)] = [self.arena[start + row] for row in rows]

    def _store(self, segment: Segment) -> range:
        """Write the segment's tokens; the indexes of those whose logits are wanted."""
        length = len(segment.token_ids)
        first = segment.extent_start + segment.position
        assert first + length <= self.kv_tokens
        self.arena[first : first + length] = segment.token_ids
        return range(length - segment.logit_rows, length)

    def _row(self, segment: Segment, row: int) -> Tensor:
        first = segment.extent_start + segment.position
        context = self.arena[segment.extent_start : first]
        context += [self.arena[first + seen] for seen in _seen(segment, row)]
        assert None not in context, "a place was read before it was written"
        if context[-1] in self.poisoned:
            return torch.full((self.vocab_size,), torch.nan)
        return self.logits_after(context)

    def logits_after(self, context: Sequence[int | None]) -> Tensor:
        """What follows the tokens that a row sees."""
        digest = hashlib.blake2b(repr(context).encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        return 3.0 * torch.randn(self.vocab_size, generator=generator)


def _seen(segment: Segment, row: int) -> list[int]:
    """The segment's tokens that its token `row` sees, oldest first."""
    trunk = len(segment.token_ids) - len(segment.parents)
    branch = []
    while row >= trunk:
        branch.append(row)
        parent = segment.parents[row - trunk]
        row = trunk - 1 if parent < 0 else trunk + parent
    return [*range(row + 1), *reversed(branch)]

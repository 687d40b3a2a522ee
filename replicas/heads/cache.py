"""Keys and values of a draft layer: a fixed arena, one extent per sequence, and attention on views of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from replicas.engine.kv_extents import Extent, KvExtents
from replicas.engine.transfer import to_device


@dataclass(frozen=True, slots=True)
class CacheShape:
    """How much the arena of one layer holds."""

    kv_heads: int
    tokens: int
    head_dim: int
    window: int | None = None
    """Positions that a row sees, itself included; None for all."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of one sequence."""

    start: int
    """First place of the sequence's extent."""
    position: int
    """Places of the sequence that are filled already; the rows fill the next ones."""
    length: int
    visible: Tensor | None = None
    """Which of the places [position + length] each row sees, bool; None for a causal chain."""


class HeadCache:
    """Who holds what of the arena. A sequence for which there is no room at all is refused; nobody is evicted."""

    def __init__(self, shape: CacheShape, *, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        self._memory = torch.empty((2, shape.kv_heads, shape.tokens, shape.head_dim), dtype=dtype, device=device)
        self.keys, self.values = self._memory[0], self._memory[1]
        """[kv_heads, tokens, head_dim]."""
        self._extents = KvExtents(shape.tokens)
        self._held: dict[int, Extent] = {}

    @property
    def size_bytes(self) -> int:
        return self._memory.nbytes

    @property
    def used_tokens(self) -> int:
        return self._extents.used_tokens

    def start(self, sequence_id: int) -> int:
        """First place of what a sequence holds, until another one is placed."""
        return self._held[sequence_id].start

    def place(self, sequence_id: int, filled: int, needed: int) -> int | None:
        """Start of an extent with `needed` places whose first `filled` are as before; None where there is no room.

        Those of others may move.
        """
        held = self._held.get(sequence_id)
        if held is not None and needed <= held.length:
            return held.start
        extent = self._extents.reserve(needed, held)
        if extent is None and needed <= self._extents.free_tokens + (held.length if held else 0):
            self._close_holes(sequence_id)
            held = self._held.get(sequence_id)
            extent = self._extents.reserve(needed, held)
        if extent is None:
            return None
        if held is not None and extent.start != held.start:
            self.keys[:, extent.start : extent.start + filled] = self.keys[:, held.start : held.start + filled]
            self.values[:, extent.start : extent.start + filled] = self.values[:, held.start : held.start + filled]
            self._extents.free(held)
        self._held[sequence_id] = extent
        return extent.start

    def release(self, sequence_ids: Iterable[int]) -> None:
        """Free what sequences hold; ids without anything are ignored."""
        for sequence_id in sequence_ids:
            held = self._held.pop(sequence_id, None)
            if held is not None:
                self._extents.free(held)

    def _close_holes(self, last: int) -> None:
        """Move all extents to the front of the arena, that of `last` behind the others, where it can grow."""
        ordered = sorted(self._held, key=lambda sequence_id: (sequence_id == last, self._held[sequence_id].start))
        kept = [place for each in ordered for place in range(self._held[each].start, self._held[each].end)]
        places = to_device(torch.tensor(kept, dtype=torch.int64), self._memory.device)
        self._memory[:, :, : len(kept)] = self._memory[:, :, places]
        self._extents, end = KvExtents(self.shape.tokens), 0
        self._extents.allocate(len(kept))
        for each in ordered:
            self._held[each] = Extent(end, self._held[each].length)
            end = self._held[each].end


class CachedRows:
    """The rows of one pass: where they go, what they see, and at which position each one stands."""

    def __init__(self, cache: HeadCache, spans: Sequence[Span], positions: Sequence[int]) -> None:
        """`positions` are those of the rotary embedding, one per row: in a tree they go by depth."""
        places = [place for span in spans for place in _places(span)]
        self._cache = cache
        self._spans = spans
        self._standing = positions
        rows = to_device(torch.tensor((places, positions), dtype=torch.int64), cache.keys.device)
        self._places, self.positions = rows.unbind(0)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Cache keys and values [n, kv_heads, D], then answer the queries [n, heads, D]: [n, heads · D]."""
        cache = self._cache
        cache.keys.index_copy_(1, self._places, keys.transpose(0, 1))
        cache.values.index_copy_(1, self._places, values.transpose(0, 1))
        answer = torch.empty_like(queries)
        row = 0
        for span in self._spans:
            end = row + span.length
            answer[row:end] = self._attend(span, self._oldest_seen(row), queries[row:end])
            row = end
        return answer.flatten(1)

    def _oldest_seen(self, row: int) -> int:
        """First place that a span's first row sees; in a tree all its rows stand at the same position."""
        window = self._cache.shape.window
        return 0 if window is None else max(0, self._standing[row] + 1 - window)

    def _attend(self, span: Span, first: int, queries: Tensor) -> Tensor:
        """Heads that share keys and values are folded into rows, so neither is ever expanded."""
        shape = self._cache.shape
        group = queries.shape[1] // shape.kv_heads
        stop = span.position + span.length
        folded = queries.transpose(0, 1).reshape(shape.kv_heads, group * span.length, shape.head_dim)
        seen = scaled_dot_product_attention(
            folded[None],
            self._cache.keys[None, :, span.start + first : span.start + stop],
            self._cache.values[None, :, span.start + first : span.start + stop],
            attn_mask=self._mask(span, first, group),
        )
        return seen.view(shape.kv_heads * group, span.length, shape.head_dim).transpose(0, 1)

    def _mask(self, span: Span, first: int, group: int) -> Tensor | None:
        """Bool [group · length, places from `first` on]; None where the only row sees all."""
        if span.visible is not None:
            return to_device(span.visible[:, first:], self._places.device).repeat(group, 1)
        if span.length == 1:
            return None
        places = torch.arange(first, span.position + span.length, device=self._places.device)
        rows = places[-span.length :, None]
        visible = places <= rows
        if self._cache.shape.window is not None:
            visible &= places > rows - self._cache.shape.window
        return visible.repeat(group, 1)


def _places(span: Span) -> range:
    first = span.start + span.position
    return range(first, first + span.length)

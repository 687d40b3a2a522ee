"""How a step's tokens attend to the KV arena: few large products instead of one small one per sequence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from replicas.engine.decoder_config import DecoderConfig
from replicas.engine.flash import causal_attention
from replicas.engine.kv_arena import KeysAndValues, KvArena
from replicas.engine.span import Span, visibility
from replicas.engine.transfer import to_device

MOST_BATCHED_ROWS = 16
"""Spans of more tokens attend alone: their products are large enough, and padding the others to them is not free."""
FIRST_BUCKET_BITS = 8
"""Spans that see up to 2^8 tokens are padded to each other; beyond that only within a factor of two."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Spans that attend together, padded to the same number of rows and keys."""

    spans: int
    rows: slice | Tensor
    """Which packed rows: int64 `[spans * rows of each]`, or a slice where none is padded."""
    views: list[KeysAndValues] | None
    """Of a single span, by layer: nothing is copied."""
    slots: Tensor | None
    """Of several spans: which places of the arena they see, int64 `[spans * keys of each]`."""
    mask: Tensor | None
    """Added to the scores: 0 or minus infinity, `[kv_heads * spans, 1 or group * rows, keys]`; None: all see all."""
    is_flash: bool
    """A single chain that sees all before it: no mask is needed, rows see ever more."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the layers of one kind attend."""

    batches: list[_Batch]
    order: Tensor | None
    """Where each packed row is found among the batches' rows, int64 `[tokens]`; None where they are in order."""


class StepAttention:
    """Attention of one forward pass: what lies where, and who sees it, is settled once for all layers."""

    def __init__(
        self, config: DecoderConfig, arena: KvArena, spans: Sequence[Span], slots: Tensor, *, flash: bool = False
    ) -> None:
        """`slots` is where each packed token is cached, int64 `[tokens]`; `flash` whether there is the kernel."""
        self._config = config
        self._arena = arena
        self._slots = slots
        self._flash = flash
        self._group = config.num_attention_heads // config.num_key_value_heads
        windows = [kind.window for kind in config.layers]
        plans = {window: self._plan(spans, window) for window in {*windows}}
        self._plans = [plans[window] for window in windows]

    def __call__(self, layer: int, queries: Tensor, keys_and_values: Tensor) -> Tensor:
        """Cache `[tokens, 2 * kv_heads, head_dim]`, then attend: `[tokens, heads, head_dim]` to the same, flat."""
        self._arena.store(layer, self._slots, keys_and_values)
        return self.attend(layer, queries)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """The same for queries whose keys and values are cached already."""
        plan = self._plans[layer]
        seen = [self._seen(layer, queries, batch) for batch in plan.batches]
        rows = seen[0] if len(seen) == 1 else torch.cat(seen)
        return rows if plan.order is None else rows.index_select(0, plan.order)

    def _seen(self, layer: int, queries: Tensor, batch: _Batch) -> Tensor:
        """Heads that share keys and values are rows of one product with them, so neither is ever expanded."""
        config, spans, group = self._config, batch.spans, self._group
        own = queries[batch.rows] if isinstance(batch.rows, slice) else queries.index_select(0, batch.rows)
        if batch.is_flash:
            assert batch.views is not None
            seen = causal_attention(own.transpose(0, 1), *batch.views[layer], config.attention_scale)
            return seen.transpose(0, 1).flatten(1)
        split = own.view(spans, -1, config.num_key_value_heads, group, config.head_dim).permute(2, 0, 3, 1, 4)
        folded = split.reshape(config.num_key_value_heads * spans, -1, config.head_dim)
        if batch.slots is not None:
            keys, values = self._arena.gather(layer, batch.slots, spans)
        else:
            assert batch.views is not None
            keys, values = batch.views[layer]
        seen = self._attend(folded, keys, values, batch.mask)
        return seen.view(split.shape).permute(1, 3, 0, 2, 4).reshape(len(own), -1)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of scaled scores times values: `[n, rows, head_dim]` and twice `[n, keys, head_dim]` to the first.

        On a CPU the fused kernel is for long chunks: at 16 sequences of 512 tokens it took 2.5 times as long, the
        gather not counted.
        """
        cap, scale = self._config.attention_softcap, self._config.attention_scale
        is_long = queries.shape[1] > MOST_BATCHED_ROWS * self._group
        if cap is None and (queries.is_cuda or is_long):
            mask = None if mask is None else mask[None]
            return scaled_dot_product_attention(queries[None], keys[None], values[None], attn_mask=mask, scale=scale)[0]
        if cap is not None:
            return capped_attention(queries, keys, values, mask, cap, scale)
        if mask is None:
            scores = torch.bmm(queries, keys.transpose(1, 2)).mul_(scale)
        else:
            scores = torch.baddbmm(mask, queries, keys.transpose(1, 2), alpha=scale)
        return torch.bmm(scores.softmax(dim=-1, dtype=torch.float32).to(queries.dtype), values)

    def _plan(self, spans: Sequence[Span], window: int | None) -> _Plan:
        buckets: dict[tuple[int, int], list[Span]] = defaultdict(list)
        for index, span in enumerate(spans):
            alone = index + 1 if span.length > MOST_BATCHED_ROWS else 0
            keys = span.end - span.first_seen(window)
            buckets[alone, max((keys - 1).bit_length(), FIRST_BUCKET_BITS)].append(span)
        order: list[int] = [0] * sum(span.length for span in spans)
        offset = 0
        for members in buckets.values():
            rows = max(span.length for span in members)
            for span in members:
                order[span.row : span.row + span.length] = range(offset, offset + span.length)
                offset += rows
        batches = [self._batch(members, window) for members in buckets.values()]
        is_ordered = order == list(range(offset))
        return _Plan(batches, None if is_ordered else to_device(torch.tensor(order), self._slots.device))

    def _batch(self, spans: list[Span], window: int | None) -> _Batch:
        rows = max(span.length for span in spans)
        firsts = [span.extent_start + span.first_seen(window) for span in spans]
        ends = [span.extent_start + span.end for span in spans]
        keys = max(end - first for first, end in zip(firsts, ends, strict=True))
        views = slots = None
        if len(spans) == 1:
            views = self._arena.views(firsts[0], ends[0])
        else:
            # Padding repeats a span's newest place: nothing unwritten is read, and nothing of a neighbour.
            places = torch.tensor(firsts)[:, None] + torch.arange(keys)
            slots = to_device(places.minimum(torch.tensor(ends)[:, None] - 1).flatten(), self._slots.device)
        is_flash = self._flash and _is_plain_chunk(spans, window)
        mask = None if is_flash else self._mask(spans, window, rows, keys)
        return _Batch(len(spans), _packed_rows(spans, rows, self._slots), views, slots, mask, is_flash)

    def _mask(self, spans: list[Span], window: int | None, rows: int, keys: int) -> Tensor | None:
        if rows == 1 and len({span.end - span.first_seen(window) for span in spans}) == 1:
            return None
        visible = to_device(visibility(spans, window, rows, keys), self._slots.device)
        mask = torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, -torch.inf)
        # Like the queries: heads outermost, then spans, then the group's heads times rows.
        grouped = mask if rows == 1 else mask.repeat(1, self._group, 1)
        mask = grouped.expand(self._config.num_key_value_heads, *grouped.shape).flatten(0, 1)
        return mask.to(self._arena.dtype)


def _is_plain_chunk(spans: Sequence[Span], window: int | None) -> bool:
    """Whether it is one long span without a tree, none of whose rows has a token behind its window."""
    span = spans[0]
    is_in_window = window is None or span.end <= window
    return len(spans) == 1 and span.length > MOST_BATCHED_ROWS and not span.parents and is_in_window


def capped_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, cap: float, scale: float
) -> Tensor:
    """Softmax of scores squashed to ±cap (Gemma 2, arXiv:2408.00118, section 2), times values.

    `[..., rows, head_dim]` and twice `[..., keys, head_dim]` to the first; the mask is added after the cap.
    """
    scores = torch.matmul(queries, keys.transpose(-1, -2)).mul_(scale / cap).tanh_().mul_(cap)
    scores = scores if mask is None else scores.add_(mask)
    return torch.matmul(scores.softmax(dim=-1, dtype=torch.float32).to(queries.dtype), values)


def _packed_rows(spans: list[Span], rows: int, like: Tensor) -> slice | Tensor:
    """Each span's rows, the last one repeated up to `rows`."""
    found = [span.row + min(row, span.length - 1) for span in spans for row in range(rows)]
    if found == list(range(found[0], found[0] + len(found))):
        return slice(found[0], found[0] + len(found))
    return to_device(torch.tensor(found), like.device)

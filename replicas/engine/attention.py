"""How packed segments attend to the KV arena: on views of it, so that a step copies no more than its new tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION_NAME = "fleet_arena"


@dataclass(frozen=True, slots=True)
class ArenaShape:
    """How much an arena holds."""

    layers: int
    kv_heads: int
    tokens: int
    head_dim: int


class KvArena:
    """Keys and values of every cached token: per layer two tensors `[kv_heads, tokens, head_dim]`."""

    def __init__(self, shape: ArenaShape, *, dtype: torch.dtype, device: torch.device) -> None:
        self._memory = torch.empty(
            (shape.layers, 2, shape.kv_heads, shape.tokens, shape.head_dim), dtype=dtype, device=device
        )
        self.keys = [layer[0] for layer in self._memory]
        self.values = [layer[1] for layer in self._memory]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy `length` cached tokens of all layers; the two ranges may overlap."""
        moving = self._memory[:, :, :, source : source + length]
        if abs(source - target) < length:
            moving = moving.clone()
        self._memory[:, :, :, target : target + length] = moving

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Move what lies at `start + rows[i]` to `start + i` in all layers; rows ascend."""
        source = torch.tensor(rows, dtype=torch.int64, device=self._memory.device) + start
        self._memory[:, :, :, start : start + len(rows)] = self._memory.index_select(3, source)


@dataclass(frozen=True, slots=True)
class Span:
    """One segment's place in the packed step and in the arena."""

    row: int
    """Its first row among the step's tokens."""
    length: int
    extent_start: int
    position: int
    """Tokens cached before it."""
    parents: tuple[int, ...] = ()
    """Of the last tokens, where they are a tree."""


def offsets(length: int, parents: Sequence[int]) -> list[int]:
    """Each token's position within its segment: its index, and in a tree one more than its parent's."""
    trunk = length - len(parents)
    found = list(range(trunk))
    for parent in parents:
        found.append(trunk if parent < 0 else found[trunk + parent] + 1)
    return found


@dataclass(slots=True)
class PackedStep:
    """What the attention layers of one forward pass need to know; masks are made once and shared by the layers."""

    arena: KvArena
    spans: Sequence[Span]
    slots: Tensor
    """Arena index of each packed token, int64 `[tokens]`."""
    masks: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)

    def mask(self, index: int, group: int, window: int | None) -> Tensor:
        """True where a row may look: bool `[group * length, keys]`, causal and within the sliding window."""
        key = (index, group, window or 0)
        found = self.masks.get(key)
        if found is None:
            span = self.spans[index]
            first = _first_visible(span, window)
            keys = torch.arange(first, span.position + span.length, device=self.slots.device)
            rows = torch.arange(span.position, span.position + span.length, device=self.slots.device)[:, None]
            visible = keys <= rows
            if span.parents:
                tree = len(span.parents)
                steps = torch.tensor(offsets(span.length, span.parents), device=self.slots.device) + span.position
                rows = steps[:, None]
                keys = torch.cat([keys[: span.position - first], steps])
                visible[-tree:, -tree:] = _ancestry(span.parents).to(self.slots.device)
            if window is not None:
                visible &= keys > rows - window
            found = self.masks[key] = visible.repeat(group, 1)
        return found


def arena_attention(  # noqa: PLR0913 (transformers' attention interface)
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    step: PackedStep,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_unused: Any,
) -> tuple[Tensor, None]:
    """Store the step's new keys and values, then attend segment by segment.

    `query` is `[1, heads, tokens, head_dim]`, `key` and `value` `[1, kv_heads, tokens, head_dim]`; the answer is
    `[1, tokens, heads, head_dim]`. Heads that share a KV head are folded into rows, so K and V are never expanded.
    """
    layer = cast(int, module.layer_idx)
    keys, values = step.arena.keys[layer], step.arena.values[layer]
    keys.index_copy_(1, step.slots, key[0])
    values.index_copy_(1, step.slots, value[0])
    _, heads, tokens, head_dim = query.shape
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    attend = scaled_dot_product_attention if softcap is None else _SoftCapped(softcap)
    output = query.new_empty((1, tokens, heads, head_dim))
    for index, span in enumerate(step.spans):
        rows = query[0, :, span.row : span.row + span.length].reshape(1, kv_heads, group * span.length, head_dim)
        begin = span.extent_start + _first_visible(span, sliding_window)
        end = span.extent_start + span.position + span.length
        mask = step.mask(index, group, sliding_window) if span.length > 1 else None
        seen = attend(rows, keys[None, :, begin:end], values[None, :, begin:end], attn_mask=mask, scale=scaling)
        output[0, span.row : span.row + span.length] = seen.view(heads, span.length, head_dim).transpose(0, 1)
    return output, None


def _ancestry(parents: Sequence[int]) -> Tensor:
    """True where a row's token is a column's descendant or the same: bool `[n, n]`."""
    found = torch.eye(len(parents), dtype=torch.bool)
    for row, parent in enumerate(parents):
        if parent >= 0:
            found[row] |= found[parent]
    return found


@dataclass(frozen=True, slots=True)
class _SoftCapped:
    """Attention with scores squashed to ±cap (Gemma 2, arXiv:2408.00118, section 2), which no fused kernel does."""

    cap: float

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor | None, scale: float) -> Tensor:
        scores = torch.tanh(query @ key.transpose(-1, -2) * (scale / self.cap)) * self.cap
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        return scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype) @ value


def _first_visible(span: Span, window: int | None) -> int:
    """Position of the oldest key that the segment's first row may see."""
    return 0 if window is None else max(0, span.position + 1 - window)


AttentionInterface.register(ATTENTION_NAME, arena_attention)

"""Attention of a recorded step: who sees what is computed on the device, from inputs that every step fills anew."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from replicas.engine.attention import capped_attention
from replicas.engine.decoder_config import DecoderConfig
from replicas.engine.graphs.inputs import GraphInputs
from replicas.engine.kv_arena import KvArena


class GraphAttention:
    """A `LayerAttention` whose shapes and launches depend on the graph's shape alone.

    Nothing here may ask the device for a value, nor bring one from the host: a replay would not do it again.
    """

    def __init__(self, config: DecoderConfig, arena: KvArena, inputs: GraphInputs) -> None:
        self._config = config
        self._arena = arena
        self._inputs = inputs
        self._group = config.num_attention_heads // config.num_key_value_heads
        self._slots = inputs.slots.flatten()
        windows = [kind.window for kind in config.layers]
        seen = {window: self._seen_places(window) for window in {*windows}}
        self._seen = [seen[window] for window in windows]

    def __call__(self, layer: int, queries: Tensor, keys_and_values: Tensor) -> Tensor:
        """Cache `[tokens, 2 * kv_heads, head_dim]`, then attend: `[tokens, heads, head_dim]` to the same, flat."""
        self._arena.store(layer, self._slots, keys_and_values)
        slots, mask = self._seen[layer]
        config, shape = self._config, self._inputs.shape
        kv_heads = config.num_key_value_heads
        gathered = self._arena.gather(layer, slots, shape.spans)
        keys, values = (each.view(kv_heads, shape.spans, -1, config.head_dim) for each in gathered)
        split = queries.view(shape.spans, shape.rows, kv_heads, self._group, config.head_dim).permute(2, 0, 3, 1, 4)
        folded = split.flatten(2, 3)
        seen = self._attend(folded, keys, values, mask)
        return seen.view(split.shape).permute(1, 3, 0, 2, 4).reshape(shape.tokens, -1)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """`[kv_heads, spans, group * rows, head_dim]` over `[kv_heads, spans, keys, head_dim]`."""
        cap, scale = self._config.attention_softcap, self._config.attention_scale
        if cap is not None:
            return capped_attention(queries, keys, values, mask, cap, scale)
        return scaled_dot_product_attention(queries, keys, values, attn_mask=mask[None], scale=scale)

    def _seen_places(self, window: int | None) -> tuple[Tensor, Tensor]:
        """Of the layers with this window: places of the arena to gather, int64 `[spans * keys]`, and the mask."""
        inputs = self._inputs
        count = torch.arange(inputs.shape.keys_within(window), device=inputs.cached.device)
        first = torch.zeros_like(inputs.cached) if window is None else (inputs.cached + 1 - window).clamp(min=0)
        places = first[:, None] + count
        # As without graphs, padding repeats a span's newest place: nothing unwritten is read, and nothing of others.
        newest = inputs.starts + inputs.cached + inputs.lengths - 1
        slots = (inputs.starts[:, None] + places).minimum(newest[:, None])
        return slots.flatten(), self._mask(places, window)

    def _mask(self, places: Tensor, window: int | None) -> Tensor:
        """0 or minus infinity in the arena's dtype, `[spans, group * rows, keys]`, of `places` `[spans, keys]`."""
        inputs, rows = self._inputs, self._inputs.shape.rows
        among = places - inputs.cached[:, None]  # below 0: cached before the span; else one of its rows, or none
        row = among.clamp(0, rows - 1)
        is_seen = (inputs.sight[:, :, None] >> row[:, None]).bitwise_and_(1).bool() & (among < rows)[:, None]
        visible = is_seen | (among < 0)[:, None]
        if window is not None:
            positions = torch.where(among < 0, places, inputs.positions.gather(1, row))
            visible &= positions[:, None] > inputs.positions[:, :, None] - window
        mask = torch.zeros(visible.shape, dtype=self._arena.dtype, device=places.device)
        return mask.masked_fill_(~visible, -torch.inf).repeat(1, self._group, 1)

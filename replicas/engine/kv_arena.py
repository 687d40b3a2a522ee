"""Where the keys and values of cached tokens lie: one block of memory, in which every sequence owns a range."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from replicas.engine.decoder_config import DecoderConfig
from replicas.engine.transfer import to_device

KeysAndValues = tuple[Tensor, Tensor]
"""Two times `[heads, tokens, head_dim]`."""


class KvArena:
    """Keys and values of all layers. A range of it is read in place; only gathering several ranges copies."""

    def __init__(self, config: DecoderConfig, tokens: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self._kv_heads = config.num_key_value_heads
        self.memory = torch.empty(
            (config.num_hidden_layers, 2 * self._kv_heads, tokens, config.head_dim), dtype=dtype, device=device
        )
        """Keys' heads before values' heads."""
        self._layers = self.memory.unbind(0)
        self.dtype = dtype
        self.bytes_per_layer_place = 2 * self._kv_heads * config.head_dim * dtype.itemsize

    @property
    def size_bytes(self) -> int:
        return self.memory.nbytes

    def store(self, layer: int, slots: Tensor, keys_and_values: Tensor) -> None:
        """Write `[tokens, 2 * kv_heads, head_dim]` to the slots, int64 `[tokens]`."""
        self._layers[layer].index_copy_(1, slots, keys_and_values.transpose(0, 1))

    def views(self, begin: int, end: int) -> list[KeysAndValues]:
        """One range, in every layer."""
        seen = self.memory[:, :, begin:end]
        keys, values = seen[:, : self._kv_heads].unbind(0), seen[:, self._kv_heads :].unbind(0)
        return list(zip(keys, values, strict=True))

    def gather(self, layer: int, slots: Tensor, ranges: int) -> KeysAndValues:
        """Copies of equally long ranges, int64 `[ranges * n]`: `[kv_heads * ranges, n, head_dim]` each."""
        copied = self._layers[layer].index_select(1, slots)
        keys, values = copied.view(2 * self._kv_heads * ranges, -1, copied.shape[2]).chunk(2)
        return keys, values

    def move(self, source: int, target: int, length: int) -> None:
        """Copy `length` cached tokens of all layers; the two ranges may overlap."""
        moving = self.memory[:, :, source : source + length]
        if abs(source - target) < length:
            moving = moving.clone()
        self.memory[:, :, target : target + length] = moving

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Move what lies at `start + rows[i]` to `start + i` in all layers; rows ascend."""
        source = to_device(torch.tensor(rows, dtype=torch.int64) + start, self.memory.device)
        self.memory[:, :, start : start + len(rows)] = self.memory.index_select(2, source)

"""Attention of a draft layer in training: every row at once, each with its own chain of drafted rows behind it."""

from __future__ import annotations

import torch
from torch import Tensor

from deploy.train.batches import Batch


class ChainRows:
    """Keys and values of a batch, pass by pass; serving has `replicas.heads.cache` for it.

    In pass 0 row r sees the rows of its example up to itself. In pass j > 0 it is the j-th token drafted behind row
    r: it sees what row r saw, and the passes 1 to j of row r itself (the training-time test of Li et al.,
    arXiv:2503.01840, section 3.2 and figure 6). Its rotary position is r + j, as in serving.
    """

    def __init__(self, batch: Batch) -> None:
        self._lengths = batch.lengths
        self._places = batch.places
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    @property
    def positions(self) -> Tensor:
        """Of the pass that comes next, int64 [n]."""
        return self._places + len(self._keys)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """One pass: queries [n, heads, D] on these and the earlier passes' keys and values [n, kv_heads, D].

        Returns [n, heads · D].
        """
        group = queries.shape[1] // keys.shape[1]
        self._keys.append(keys.repeat_interleave(group, 1))
        self._values.append(values.repeat_interleave(group, 1))
        parts = []
        start = 0
        for length in self._lengths:
            parts.append(self._attend(queries[start : start + length], start, start + length))
            start += length
        return torch.cat(parts).flatten(1)

    def _attend(self, queries: Tensor, start: int, end: int) -> Tensor:
        """Within one example: [length, heads, D]."""
        own = queries.transpose(0, 1)
        base_keys, *chain_keys = [keys[start:end].transpose(0, 1) for keys in self._keys]
        base_values, *chain_values = [values[start:end].transpose(0, 1) for values in self._values]
        future = torch.ones(end - start, end - start, dtype=torch.bool, device=queries.device).triu(1)
        scores = [(own @ base_keys.transpose(1, 2)).masked_fill(future, -torch.inf)]
        scores += [(own * keys).sum(-1, keepdim=True) for keys in chain_keys]
        weights = (torch.cat(scores, -1) / queries.shape[-1] ** 0.5).softmax(-1)
        seen = weights[..., : end - start] @ base_values
        for step, values in enumerate(chain_values, start=end - start):
            seen = seen + weights[..., step : step + 1] * values
        answer: Tensor = seen.transpose(0, 1)
        return answer

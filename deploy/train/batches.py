"""Which examples are learnt in which step, and how they lie beside each other. Nothing here depends on the past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deploy.train.dialogues import Example


@dataclass(frozen=True, slots=True)
class Batch:
    """Whole examples end to end: n rows, one for each token."""

    lengths: tuple[int, ...]
    tokens: Tensor
    """int64 [n]."""
    places: Tensor
    """int64 [n]: each row's index within its example."""
    last_rows: Tensor
    """int64 [n]: the last row of each row's example."""
    is_taught: Tensor
    """bool [n]: whether the token after this row's is one that the target answered."""
    states: Tensor
    """float32 [n, width]: tapped states of the target."""

    def ahead(self, count: int) -> Tensor:
        """int64 [n]: the row that lies `count` further, or the last of the example."""
        rows = torch.arange(len(self.tokens), device=self.tokens.device)
        return torch.minimum(rows + count, self.last_rows)

    def is_taught_ahead(self, count: int) -> Tensor:
        """bool [n]: whether there is a row `count` further, and what follows it is an answered token."""
        rows = torch.arange(len(self.tokens), device=self.tokens.device)
        return self.is_taught[self.ahead(count)] & (rows + count <= self.last_rows)


def plan_steps(lengths: Sequence[int], batch_tokens: int, epochs: int, seed: int) -> list[tuple[int, ...]]:
    """The examples of every step of every epoch: a new random order each time, up to `batch_tokens` tokens a step.

    An example longer than that is a step of its own.
    """
    steps: list[tuple[int, ...]] = []
    for epoch in range(epochs):
        order = np.random.default_rng((seed, epoch)).permutation(len(lengths)).tolist()
        steps += grouped(order, lengths, batch_tokens)
    return steps


def grouped(order: Sequence[int], lengths: Sequence[int], batch_tokens: int) -> list[tuple[int, ...]]:
    """Examples in the given order, as many at a time as fit into `batch_tokens`, at least one."""
    groups: list[tuple[int, ...]] = []
    group: list[int] = []
    size = 0
    for index in order:
        if group and size + lengths[index] > batch_tokens:
            groups.append(tuple(group))
            group, size = [], 0
        group.append(index)
        size += lengths[index]
    return [*groups, tuple(group)] if group else groups


def packed(examples: Sequence[Example], states: Tensor, device: torch.device) -> Batch:
    """The examples and their states [n, width] as one batch on a device."""
    lengths = [len(example.tokens) for example in examples]
    places = np.concatenate([np.arange(length) for length in lengths])
    last_rows = np.repeat(np.cumsum(lengths) - 1, lengths)
    prompts = np.repeat([example.prompt_length for example in examples], lengths)
    is_taught = (places >= prompts - 1) & (np.arange(len(places)) < last_rows)
    return Batch(
        tuple(lengths),
        torch.from_numpy(np.concatenate([example.tokens for example in examples])).long().to(device),
        torch.from_numpy(places).to(device),
        torch.from_numpy(last_rows).to(device),
        torch.from_numpy(is_taught).to(device),
        states.to(device).float(),
    )

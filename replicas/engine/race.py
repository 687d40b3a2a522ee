"""Temperature, min_p, top-k, top-p and the draw itself, for one row of logits.

The draw is the exponential race, argmin over tokens of E_i / p_i with E_i = -log u_i, written as the Gumbel-max trick
argmax of log p_i - log E_i (Maddison, Tarlow, Minka: "A* Sampling", 2014, section 2): normalisation drops out.
Where a cut falls among equal logits, all of them stay, so that no result depends on the order of a sort.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from fleet.generation import SamplingParams
from replicas.engine.noise import gumbel, random_bits

FIRST_NUCLEUS_DEPTH = 8.0
"""The nucleus is first looked for among tokens at most e^8 times less likely than the best."""
LAST_NUCLEUS_DEPTH = 128.0
"""Weights beyond it are nothing in float64; then everything is sorted."""
ROUNDING = 1e-4
"""Far above the rounding of float32 logits; a contender too many costs nothing."""


def race(row: Tensor, sampling: SamplingParams, key: int) -> int:
    """The token drawn from float32 logits [V] with a finite maximum; `key` names the noise (`noise.stream_key`)."""
    token_ids = survivors(row, sampling)
    if token_ids is None:
        token_ids = _contenders(row, sampling.temperature, key)
    noisy = _scores(row[token_ids], sampling.temperature) + gumbel(random_bits(key, token_ids))
    return int(token_ids[noisy.argmax()])


def distribution(row: Tensor, sampling: SamplingParams) -> Tensor:
    """The probabilities that `race` draws with: float64 [V]."""
    token_ids = survivors(row, sampling)
    if token_ids is None:
        token_ids = torch.arange(len(row), device=row.device)
    probabilities = _scores(row[token_ids], sampling.temperature).softmax(0)
    return torch.zeros(len(row), dtype=torch.float64, device=row.device).index_copy(0, token_ids, probabilities)


def survivors(row: Tensor, sampling: SamplingParams) -> Tensor | None:
    """Ids, ascending, of the tokens that min_p, top-k and top-p leave in this order; None where nothing is cut."""
    token_ids = None
    for cut in _cuts(sampling):
        kept = cut(row)
        row = row[kept]
        token_ids = kept if token_ids is None else token_ids[kept]
    return token_ids


def first_of_the_best(rows: Tensor) -> Tensor:
    """The index of each row's maximum, the lowest among equals; of its NaN where there is one. [R, V] to int64 [R]."""
    if rows.device.type == "cpu":  # numpy is ten times as fast as torch here
        return torch.from_numpy(rows.numpy().argmax(1))
    return rows.argmax(1)


def positions(mask: Tensor) -> Tensor:
    """Indexes of the true entries, ascending: bool [N] to int64 [n]."""
    if mask.device.type == "cpu":  # as above
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero()[:, 0]


def _cuts(sampling: SamplingParams) -> Iterator[Callable[[Tensor], Tensor]]:
    """Functions from logits to the positions that stay. The best always stays, so scores keep their reference."""
    if sampling.min_p > 0.0:
        yield lambda logits: positions(logits >= logits.max().item() + sampling.temperature * math.log(sampling.min_p))
    if sampling.top_k > 0:
        yield lambda logits: positions(logits >= logits.topk(min(sampling.top_k, len(logits))).values[-1])
    if sampling.top_p < 1.0:
        yield lambda logits: _nucleus(_scores(logits, sampling.temperature), sampling.top_p)


def _scores(logits: Tensor, temperature: float) -> Tensor:
    """Log-probabilities up to a constant, 0 for the best: float64 [N]."""
    scores = logits.to(torch.float64)
    return scores.sub_(scores.max()).div_(temperature)


def _nucleus(scores: Tensor, top_p: float) -> Tensor:
    """Positions of the tokens such that whatever is strictly likelier than each of them holds less than `top_p`."""
    weights = scores.exp()
    wanted = top_p * weights.sum()
    depth = FIRST_NUCLEUS_DEPTH
    while True:
        near = positions(scores >= -depth)
        ordered = weights[near].sort(descending=True).values
        mass = ordered.cumsum(0)
        if mass[-1] >= wanted or len(near) == len(scores):
            break
        depth = 2 * depth if depth < LAST_NUCLEUS_DEPTH else math.inf
    kept = max(1, int((mass - ordered < wanted).sum()))
    return near[positions(weights[near] >= ordered[kept - 1])]


def _contenders(row: Tensor, temperature: float, key: int) -> Tensor:
    """Ids of the tokens that could win the race over the whole vocabulary.

    The best token scores 0 plus its own noise; nobody's noise is above the loudest. So whoever lies further below the
    best than the loudest noise exceeds the best's own cannot win, and needs no logarithms.
    """
    bits = random_bits(key, torch.arange(len(row), device=row.device))
    best = first_of_the_best(row[None])
    own, loudest = gumbel(torch.cat([bits[best], bits.max()[None]])).tolist()
    bar = row[best].item() - temperature * (loudest - own)
    return positions(row >= bar - ROUNDING * (1 + abs(bar)))

"""Temperature, min_p, top-k, top-p and the draw itself, for one row of logits.

The draw is the exponential race, argmin over tokens of E_i / p_i with E_i = -log u_i, written as the Gumbel-max trick
argmax of log p_i - log E_i (Maddison, Tarlow, Minka: "A* Sampling", 2014, section 2): normalisation drops out.
Where a cut falls among equal logits, all of them stay, so that no result depends on the order of a sort.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from fleet.generation import SamplingParams
from replicas.engine.noise import BLOCK_TOKENS, Floats, Ids, exponentials, smallest_of_blocks
from replicas.speculation.rejection import Sparse

Logits = NDArray[np.float32]

FIRST_BLOCKS = 4
ROUNDING = 1e-9
"""Far above the rounding of a score in float64; a contender too many costs nothing."""
FIRST_DEPTH = 4.0
"""The nucleus is first looked for among tokens at most e^4 times less likely than the best."""
LAST_DEPTH = 128.0


def race(row: Logits, sampling: SamplingParams, key: int) -> int:
    """The token drawn from logits [V] with a finite maximum; `key` names the noise (`noise.stream_key`)."""
    token_ids = survivors(row, sampling)
    if token_ids is None:
        token_ids = _contenders(row, sampling.temperature, key)
    return int(token_ids[_noisy(row, token_ids, sampling.temperature, key).argmax()])


def ranking(row: Logits, sampling: SamplingParams, key: int, count: int) -> tuple[int, ...]:
    """The up to `count` tokens that come in first, the winner ahead; with those of -inf logits never among them.

    They are a draw without replacement (Kool, van Hoof, Welling: "Stochastic Beams and Where to Find Them", 2019,
    section 2.3). A `count` above the `FIRST_BLOCKS · BLOCK_TOKENS` that are looked at first is cut to it.
    """
    count = min(count, FIRST_BLOCKS * BLOCK_TOKENS)
    token_ids = survivors(row, sampling)
    if token_ids is None:
        token_ids = _contenders(row, sampling.temperature, key, count)
    scores = _noisy(row, token_ids, sampling.temperature, key)
    order = np.argsort(-scores, kind="stable")[:count]
    return tuple(token_ids[order[scores[order] > -math.inf]].tolist())


def draw(probabilities: Floats, key: int) -> int:
    """The token drawn from probabilities [V]."""
    with np.errstate(divide="ignore"):
        row = np.log(probabilities)
    token_ids = _contenders(row, 1.0, key)
    return int(token_ids[_noisy(row, token_ids, 1.0, key).argmax()])


def draw_sparse(distribution: Sparse, key: int, count: int = 1) -> tuple[int, ...]:
    """Up to `count` tokens drawn from a sparse distribution one after the other, without putting back.

    Whoever knows distribution and key can draw them again.
    """
    token_ids = np.array(distribution.token_ids)
    scores = np.log(distribution.weights) - np.log(exponentials(key, token_ids))
    return tuple(token_ids[np.argsort(-scores, kind="stable")[:count]].tolist())


def likeliest(row: Logits, sampling: SamplingParams, count: int) -> Sparse:
    """The distribution that `race` draws with, cut to its `count` likeliest tokens and rounded to float32."""
    token_ids = survivors(row, sampling)
    if token_ids is None:
        token_ids = np.arange(len(row))
    if len(token_ids) > count:
        token_ids = token_ids[np.argpartition(row[token_ids], -count)[-count:]]
    weights = np.exp((row[token_ids].astype(np.float64) - row.max()) / sampling.temperature)
    return Sparse.rounded(token_ids.tolist(), (weights / weights.sum()).tolist())


def distribution(row: Logits, sampling: SamplingParams) -> Floats:
    """The probabilities that `race` draws with: [V]."""
    token_ids = survivors(row, sampling)
    if token_ids is None:
        token_ids = np.arange(len(row))
    weights = np.exp((row[token_ids].astype(np.float64) - row.max()) / sampling.temperature)
    probabilities = np.zeros(len(row))
    probabilities[token_ids] = weights / weights.sum()
    return probabilities


def survivors(row: Logits, sampling: SamplingParams) -> Ids | None:
    """Ids, ascending, of the tokens that min_p, top-k and top-p leave in this order; None where nothing is cut."""
    token_ids = None
    for cut in _cuts(sampling):
        kept = np.flatnonzero(cut(row))
        row = row[kept]
        token_ids = kept if token_ids is None else token_ids[kept]
    return token_ids


def _cuts(sampling: SamplingParams) -> Iterator[Callable[[Logits], NDArray[np.bool_]]]:
    """Functions from logits to which of them stay; the best always does."""
    if sampling.min_p > 0.0:
        yield lambda logits: logits >= logits.max() + sampling.temperature * math.log(sampling.min_p)
    if sampling.top_k > 0:
        yield lambda logits: logits >= _largest(logits, sampling.top_k)
    if sampling.top_p < 1.0:
        yield lambda logits: logits >= _nucleus_floor(logits, sampling.temperature, sampling.top_p)


def _largest(values: Logits | Floats, count: int) -> float:
    """The `count`th largest value, or the smallest where there are fewer."""
    rank = max(0, len(values) - count)
    return float(np.partition(values, rank)[rank])


def _nucleus_floor(logits: Logits, temperature: float, top_p: float) -> float:
    """The least logit such that all that are strictly larger hold less than `top_p` of the probability.

    The sum over the tail is of float32 terms: a millionth of its last token is far below what a logit is exact to.
    """
    peak = logits.max()
    weights = logits - peak
    weights /= np.float32(temperature)
    wanted = top_p * np.exp(weights, out=weights).sum(dtype=np.float64)
    depth = FIRST_DEPTH
    while True:
        near = -np.sort(-logits[logits >= peak - depth * temperature])
        mass = np.exp((near.astype(np.float64) - peak) / temperature).cumsum()
        if mass[-1] >= wanted or len(near) == len(logits):
            return float(near[min(np.searchsorted(mass, wanted), len(near) - 1)])
        depth = 2 * depth if depth < LAST_DEPTH else math.inf


def _contenders(row: Logits | Floats, temperature: float, key: int, count: int = 1) -> Ids:
    """Ids, ascending, of tokens among which the first `count` of the race over the whole vocabulary are.

    No token does better than it would with the smallest exponential of its block. The blocks whose best token promises
    most in this way set the bar; blocks, then tokens, that promise less than it are passed over.
    """
    if len(row) <= FIRST_BLOCKS * BLOCK_TOKENS:
        return np.arange(len(row))
    peaks = np.maximum.reduceat(row, np.arange(0, len(row), BLOCK_TOKENS)).astype(np.float64)
    handicaps = np.log(smallest_of_blocks(key, np.arange(len(peaks)))[0])
    promises = peaks / temperature - handicaps
    first = _tokens_of(np.flatnonzero(promises >= _largest(promises, FIRST_BLOCKS)), len(row))
    bar = _largest(_noisy(row, first, temperature, key), count)
    bar -= ROUNDING * (1 + abs(bar))
    token_ids = _tokens_of(np.flatnonzero(promises >= bar), len(row))
    can_win = row[token_ids].astype(np.float64) / temperature - handicaps[token_ids // BLOCK_TOKENS] >= bar
    contenders: Ids = token_ids[can_win]
    return contenders


def _noisy(row: Logits | Floats, token_ids: Ids, temperature: float, key: int) -> Floats:
    """What the race compares: log-probability up to a constant, minus the logarithm of the noise: [n]."""
    return row[token_ids].astype(np.float64) / temperature - np.log(exponentials(key, token_ids))


def _tokens_of(blocks: Ids, vocab_size: int) -> Ids:
    token_ids = (blocks[:, None] * BLOCK_TOKENS + np.arange(BLOCK_TOKENS)).ravel()
    return token_ids[token_ids < vocab_size]

"""The work of a layer between its products, compiled: launching it operation by operation takes longer for few rows.

Arrays are C-contiguous, and `rows` says how many of their first rows are meant. `scale` is the factor that a product
left out of its result (`Linear.unscale`), `arena` what is cached of one layer, `[2 kv_heads, places, head_dim]`, keys
first. What is NaN stays NaN: whoever samples must see that a model is broken.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray

from replicas.engine.fused.compiling import compiled

Floats = NDArray[np.float32]
Words = NDArray[np.int32]
Integers = NDArray[np.int64]
Float = Any
"""A float32, as numba types it."""

ONE, ZERO, HALF = np.float32(1), np.float32(0), np.float32(0.5)
LOG2_E = np.float32(1 / math.log(2))
LARGEST_POWER = np.float32(126)
"""2 to it is a normal number."""
SMALLEST_POWER = np.float32(-100)
"""2 to less counts as 0: beside 1 it is nothing, and numbers that are not normal are slow to compute with."""
UNSEEN = np.float32(-1e30)
"""The score of what a row does not see."""
BLOCK = 4
"""Keys, and values, that are taken at a time."""
HEADS = 3
"""Heads with the same keys and values that are taken at a time: their products with a block fit into registers."""
EXPONENT_BIAS, MANTISSA_BITS = np.int32(127), np.int32(23)
P0, P1, P2, P3, P4, P5, P6 = (
    np.float32(term) for term in Chebyshev.interpolate(np.exp2, 6, domain=[-0.5, 0.5]).convert(kind=Polynomial).coef
)
"""2^x = P0 + P1 x + … for |x| up to a half, to within float32's precision."""


@compiled("void(float32[::1], int64, float32, int32[::1])")
def exponentiate(values: Floats, count: int, offset: Float, words: Words) -> None:
    """e^(value - offset) in place of the first `count` values; `words` is room for as many.

    The whole part of the exponent to base 2 goes into a number's exponent bits (IEEE 754), the rest through the
    polynomial. Unlike the C library's it is vectorised.
    """
    powers = words.view(np.float32)
    for i in range(count):
        exponent = (values[i] - offset) * LOG2_E
        bounded = SMALLEST_POWER if exponent < SMALLEST_POWER else exponent
        bounded = LARGEST_POWER if bounded > LARGEST_POWER else bounded
        whole = np.floor(bounded + HALF)
        x = bounded - whole
        words[i] = (np.int32(whole) + EXPONENT_BIAS) << MANTISSA_BITS
        power = ((((((P6 * x + P5) * x + P4) * x + P3) * x + P2) * x + P1) * x + P0) * powers[i]
        values[i] = ZERO if exponent < SMALLEST_POWER else power


@compiled("void(float32[:,::1], float32[:,::1], float32, float32[::1], float32, float32[:,::1], int64)")
def add_and_norm(
    stream: Floats, update: Floats, scale: Float, weight: Floats, epsilon: Float, normed: Floats, rows: int
) -> None:
    """Add `update` · scale to the residual stream, `[≥ rows, hidden]` both, and leave its RMSNorm in `normed`.

    Zhang and Sennrich, arXiv:1910.07467, equation 4.
    """
    width = stream.shape[1]
    for row in range(rows):
        squares = ZERO
        for i in range(width):
            value = stream[row, i] + update[row, i] * scale
            stream[row, i] = value
            squares += value * value
        factor = ONE / math.sqrt(squares / np.float32(width) + epsilon)
        for i in range(width):
            normed[row, i] = stream[row, i] * factor * weight[i]


@compiled("void(float32[:,::1], float32, float32[:,::1], float32[:,:,::1], int64[::1], int64, int64)")
def rotate_and_cache(
    qkv: Floats, scale: Float, rotation: Floats, arena: Floats, slots: Integers, heads: int, rows: int
) -> None:
    """Scale and rotate queries in place; cache keys, rotated, and values (arXiv:2104.09864, equation 34).

    `qkv` is `[≥ rows, (heads + 2 kv_heads) head_dim]` with channels in pairs (`rope.pair_channels`), `rotation`
    `[rows, head_dim]` the cosine and sine of each pair, and `slots` the place of each row.
    """
    kv_heads, head_dim = len(arena) // 2, arena.shape[2]
    for row in range(rows):
        for head in range(heads + kv_heads):
            first = head * head_dim
            for i in range(0, head_dim, 2):
                x, y = qkv[row, first + i] * scale, qkv[row, first + i + 1] * scale
                cosine, sine = rotation[row, i], rotation[row, i + 1]
                qkv[row, first + i] = x * cosine - y * sine
                qkv[row, first + i + 1] = x * sine + y * cosine
        for head in range(2 * kv_heads):
            first = (heads + head) * head_dim
            factor = ONE if head < kv_heads else scale
            for i in range(head_dim):
                arena[head, slots[row], i] = qkv[row, first + i] * factor


@compiled("void(float32[::1], float32[::1], float32[::1], float32[:,::1], int64, int64, float32, float32[:,::1])")
def score(
    query_0: Floats,
    query_1: Floats,
    query_2: Floats,
    keys: Floats,
    place: int,
    count: int,
    scale: Float,
    scores: Floats,
) -> None:
    """query · key · scale of HEADS queries and `count` keys from a place on; up to BLOCK - 1 numbers behind them too.

    What is loaded of queries and keys is shared by all products of a block.
    """
    last = place + count - 1
    for j in range(0, count, BLOCK):
        key_0, key_1 = keys[place + j], keys[min(place + j + 1, last)]
        key_2, key_3 = keys[min(place + j + 2, last)], keys[min(place + j + 3, last)]
        product_00 = product_01 = product_02 = product_03 = ZERO
        product_10 = product_11 = product_12 = product_13 = ZERO
        product_20 = product_21 = product_22 = product_23 = ZERO
        for i in range(len(query_0)):
            part_0, part_1, part_2 = query_0[i], query_1[i], query_2[i]
            with_0, with_1, with_2, with_3 = key_0[i], key_1[i], key_2[i], key_3[i]
            product_00 += part_0 * with_0
            product_01 += part_0 * with_1
            product_02 += part_0 * with_2
            product_03 += part_0 * with_3
            product_10 += part_1 * with_0
            product_11 += part_1 * with_1
            product_12 += part_1 * with_2
            product_13 += part_1 * with_3
            product_20 += part_2 * with_0
            product_21 += part_2 * with_1
            product_22 += part_2 * with_2
            product_23 += part_2 * with_3
        scores[0, j], scores[0, j + 1] = product_00 * scale, product_01 * scale
        scores[0, j + 2], scores[0, j + 3] = product_02 * scale, product_03 * scale
        scores[1, j], scores[1, j + 1] = product_10 * scale, product_11 * scale
        scores[1, j + 2], scores[1, j + 3] = product_12 * scale, product_13 * scale
        scores[2, j], scores[2, j + 1] = product_20 * scale, product_21 * scale
        scores[2, j + 2], scores[2, j + 3] = product_22 * scale, product_23 * scale


@compiled("void(float32[::1], int64, int32[::1])")
def softmax(scores: Floats, count: int, words: Words) -> None:
    """Shares of the first `count`, in place, and 0 for a block behind them; `words` is room for as many."""
    scores[count : count + BLOCK] = UNSEEN
    largest_0 = largest_1 = largest_2 = largest_3 = UNSEEN
    for j in range(0, count, BLOCK):
        largest_0, largest_1 = max(largest_0, scores[j]), max(largest_1, scores[j + 1])
        largest_2, largest_3 = max(largest_2, scores[j + 2]), max(largest_3, scores[j + 3])
    exponentiate(scores, count, max(largest_0, largest_1, largest_2, largest_3), words)
    sum_ = ZERO
    for j in range(count):
        sum_ += scores[j]
    for j in range(count):
        scores[j] /= sum_
    scores[count : count + BLOCK] = ZERO


@compiled("void(float32[:,::1], float32[:,::1], int64, int64, float32[:,::1])")
def mix(shares: Floats, values: Floats, place: int, count: int, mixed: Floats) -> None:
    """Σ share · value over `count` values from a place on, HEADS times; behind the shares there is a block of 0."""
    last = place + count - 1
    mixed[:] = ZERO
    for j in range(0, count, BLOCK):
        value_0, value_1 = values[place + j], values[min(place + j + 1, last)]
        value_2, value_3 = values[min(place + j + 2, last)], values[min(place + j + 3, last)]
        share_00, share_01, share_02, share_03 = shares[0, j], shares[0, j + 1], shares[0, j + 2], shares[0, j + 3]
        share_10, share_11, share_12, share_13 = shares[1, j], shares[1, j + 1], shares[1, j + 2], shares[1, j + 3]
        share_20, share_21, share_22, share_23 = shares[2, j], shares[2, j + 1], shares[2, j + 2], shares[2, j + 3]
        for i in range(values.shape[1]):
            of_0, of_1, of_2, of_3 = value_0[i], value_1[i], value_2[i], value_3[i]
            mixed[0, i] += share_00 * of_0 + share_01 * of_1 + share_02 * of_2 + share_03 * of_3
            mixed[1, i] += share_10 * of_0 + share_11 * of_1 + share_12 * of_2 + share_13 * of_3
            mixed[2, i] += share_20 * of_0 + share_21 * of_1 + share_22 * of_2 + share_23 * of_3


@compiled(
    "void(float32[:,::1], float32[:,:,::1], int64[:,::1], uint64[::1], float32,"
    "float32[:,::1], float32[:,::1], float32[:,::1], int32[::1])"
)
def attend(
    queries: Floats,
    arena: Floats,
    seen: Integers,
    sight: NDArray[np.uint64],
    scale: Float,
    attended: Floats,
    mixed: Floats,
    scores: Floats,
    words: Words,
) -> None:
    """Softmax of scaled scores times values, row after row: `[≥ rows, heads head_dim]`.

    A row sees `seen[row] = (place, before, own)`: so many cached tokens from a place on, then of the `own` tokens of
    its span behind them those whose bit is set in `sight[row]` (`Span.sight`). Heads that share keys and values go
    together, HEADS at a time; where there are fewer, the last one is computed again for nobody. `mixed` is room for
    `[HEADS, head_dim]`, `scores` for HEADS times all that is seen and a block, `words` for as much once.
    """
    kv_heads, head_dim = len(arena) // 2, arena.shape[2]
    group = attended.shape[1] // head_dim // kv_heads
    for row in range(len(seen)):
        place, before, own = seen[row]
        query = queries[row, : kv_heads * group * head_dim].reshape((kv_heads * group, head_dim))
        for kv_head in range(kv_heads):
            end = (kv_head + 1) * group
            for head in range(kv_head * group, end, HEADS):
                heads = min(HEADS, end - head)
                query_1, query_2 = query[min(head + 1, end - 1)], query[min(head + 2, end - 1)]
                score(query[head], query_1, query_2, arena[kv_head], place, before + own, scale, scores)
                for j in range(own):
                    if not sight[row] >> np.uint64(j) & np.uint64(1):
                        scores[:, before + j] = UNSEEN
                for index in range(HEADS):
                    softmax(scores[index], before + own, words)
                mix(scores, arena[kv_heads + kv_head], place, before + own, mixed)
                for index in range(heads):
                    first = (head + index) * head_dim
                    attended[row, first : first + head_dim] = mixed[index]


@compiled("void(float32[:,::1], float32, float32[:,::1], int64, int32[::1])")
def gate(gate_and_up: Floats, scale: Float, gated: Floats, rows: int, words: Words) -> None:
    """SiLU(gate) · up, of `[≥ rows, 2 inner]` side by side: `[≥ rows, inner]` (Shazeer, arXiv:2002.05202, equation 6).

    `words` has room for a row.
    """
    width = gated.shape[1]
    for row in range(rows):
        gates, ups, result = gate_and_up[row, :width], gate_and_up[row, width:], gated[row]
        for i in range(width):
            result[i] = -gates[i] * scale
        exponentiate(result, width, ZERO, words)
        for i in range(width):
            result[i] = gates[i] * scale / (ONE + result[i]) * (ups[i] * scale)

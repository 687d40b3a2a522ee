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


@compiled("void(float32[::1], float32[:,::1], int64, int64, float32, float32[::1])")
def score(query: Floats, keys: Floats, place: int, count: int, scale: Float, scores: Floats) -> None:
    """query · key · scale for `count` keys from a place on, up to BLOCK - 1 numbers behind them too.

    Four keys at a time share what is loaded of the query.
    """
    last = place + count - 1
    for j in range(0, count, BLOCK):
        at = place + j
        key_0, key_1 = keys[at], keys[min(at + 1, last)]
        key_2, key_3 = keys[min(at + 2, last)], keys[min(at + 3, last)]
        product_0 = product_1 = product_2 = product_3 = ZERO
        for i in range(len(query)):
            part = query[i]
            product_0 += part * key_0[i]
            product_1 += part * key_1[i]
            product_2 += part * key_2[i]
            product_3 += part * key_3[i]
        scores[j], scores[j + 1] = product_0 * scale, product_1 * scale
        scores[j + 2], scores[j + 3] = product_2 * scale, product_3 * scale


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


@compiled("void(float32[::1], float32[:,::1], int64, int64, float32[::1])")
def mix(shares: Floats, values: Floats, place: int, count: int, result: Floats) -> None:
    """Σ share · value over `count` values from a place on; there are shares of 0 for a block behind them."""
    last = place + count - 1
    for i in range(len(result)):
        result[i] = ZERO
    for j in range(0, count, BLOCK):
        at = place + j
        value_0, value_1 = values[at], values[min(at + 1, last)]
        value_2, value_3 = values[min(at + 2, last)], values[min(at + 3, last)]
        share_0, share_1, share_2, share_3 = shares[j], shares[j + 1], shares[j + 2], shares[j + 3]
        for i in range(len(result)):
            result[i] += share_0 * value_0[i] + share_1 * value_1[i] + share_2 * value_2[i] + share_3 * value_3[i]


@compiled(
    "void(float32[:,::1], float32[:,:,::1], int64[:,::1], uint64[::1], float32,"
    "float32[:,::1], float32[::1], int32[::1])"
)
def attend(
    queries: Floats,
    arena: Floats,
    seen: Integers,
    sight: NDArray[np.uint64],
    scale: Float,
    attended: Floats,
    scores: Floats,
    words: Words,
) -> None:
    """Softmax of scaled scores times values, one row and head after the other: `[≥ rows, heads head_dim]`.

    A row sees `seen[row] = (place, before, own)`: so many cached tokens from a place on, then of the `own` tokens of
    its span behind them those whose bit is set in `sight[row]` (`Span.sight`). `scores` and `words` have room for a
    block more than that.
    """
    kv_heads, head_dim = len(arena) // 2, arena.shape[2]
    heads = attended.shape[1] // head_dim
    for row in range(len(seen)):
        place, before, own = seen[row]
        for head in range(heads):
            kv_head = head * kv_heads // heads
            first, end = head * head_dim, (head + 1) * head_dim
            score(queries[row, first:end], arena[kv_head], place, before + own, scale, scores)
            for j in range(own):
                if not sight[row] >> np.uint64(j) & np.uint64(1):
                    scores[before + j] = UNSEEN
            softmax(scores, before + own, words)
            mix(scores, arena[kv_heads + kv_head], place, before + own, attended[row, first:end])


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

"""The random numbers of the sampler: one uniform per (seed, choice, output position, token), equal on every host.

They come from a counter, not from a state: nothing depends on batch, step, draft index or on what was drawn before.
SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014) gives the stream over tokens;
its start is the same mixing over seed, choice and position.
"""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
FIRST_MULTIPLIER = 0xBF58476D1CE4E5B9
SECOND_MULTIPLIER = 0x94D049BB133111EB
WORD = (1 << 64) - 1
UNIFORM_BITS = 52
"""With half a step added, every value is exact in float64 and neither 0 nor 1."""


def stream_key(seed: int, choice_index: int, position: int) -> int:
    """Where the stream of one draw starts, as a signed 64-bit integer; any integers are allowed."""
    state = 0
    for word in (seed, choice_index, position):
        state = _mix((state ^ _mix(word + GOLDEN_GAMMA)) + GOLDEN_GAMMA)
    return _signed(state)


def random_bits(key: int, token_ids: Tensor) -> Tensor:
    """52 random bits per token: int64 of the shape and device of `token_ids` (int64)."""
    word = (token_ids + 1).mul_(_signed(GOLDEN_GAMMA)).add_(key)
    word.bitwise_xor_(_shift_right(word, 30)).mul_(_signed(FIRST_MULTIPLIER))
    word.bitwise_xor_(_shift_right(word, 27)).mul_(_signed(SECOND_MULTIPLIER))
    word.bitwise_xor_(_shift_right(word, 31))
    return _shift_right(word, 64 - UNIFORM_BITS)


def gumbel(bits: Tensor) -> Tensor:
    """Standard Gumbel noise -log E with E = -log u and u = (bits + ½) / 2^52, in float64."""
    uniform = bits.to(torch.float64).add_(0.5).mul_(0.5**UNIFORM_BITS)
    return uniform.log_().neg_().log_().neg_()


def _mix(word: int) -> int:
    word &= WORD
    word = ((word ^ (word >> 30)) * FIRST_MULTIPLIER) & WORD
    word = ((word ^ (word >> 27)) * SECOND_MULTIPLIER) & WORD
    return word ^ (word >> 31)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _shift_right(word: Tensor, count: int) -> Tensor:
    """A logical shift: torch shifts the sign in."""
    return torch.bitwise_right_shift(word, count).bitwise_and_((1 << (64 - count)) - 1)

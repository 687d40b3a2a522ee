"""The random numbers of the sampler: one exponential per (seed, choice, output position, token), equal on every host.

They come from counters, not from a state: nothing depends on batch, step, draft index or what was drawn before.

An exponential has no memory: of 64 independent ones the smallest has rate 64, each is equally likely to be it, and
the others exceed it by fresh exponentials of rate 1. The noise is built that way, in blocks of 64 token ids: the
smallest of a block is known without its members, and a draw can pass over almost the whole vocabulary (`race`).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

BLOCK_TOKENS = 64

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Words = NDArray[np.uint64]

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
FIRST_MULTIPLIER = 0xBF58476D1CE4E5B9
SECOND_MULTIPLIER = 0x94D049BB133111EB
WORD = (1 << 64) - 1
UNIFORM_BITS = 52
"""With half a step added, every uniform is exact in float64 and neither 0 nor 1."""


class Purpose(IntEnum):
    """What a draw is for: streams of different purposes are independent."""

    TOKEN = 0
    DRAFT = 1
    COIN = 2
    RECOVERY = 3


def stream_key(seed: int, choice_index: int, position: int, purpose: Purpose = Purpose.TOKEN) -> int:
    """The key of one draw's noise, 64 bits; any integers are allowed."""
    key = 0
    for word in (seed, choice_index, position, *([purpose] if purpose else [])):
        key = _mixed((key ^ _mixed(word)) + GOLDEN_GAMMA)
    return key


def coin(key: int, index: int = 0) -> float:
    """One uniform number in (0, 1); those of other indexes are independent of it."""
    return ((_mixed(key + index * GOLDEN_GAMMA) >> (64 - UNIFORM_BITS)) + 0.5) * 0.5**UNIFORM_BITS


def exponentials(key: int, token_ids: Ids) -> Floats:
    """Independent standard exponentials, one per token id ≥ 0, in any order: [n] to float64 [n]."""
    smallest, holder = smallest_of_blocks(key, token_ids // BLOCK_TOKENS)
    excess = _exponential(_words(key, token_ids.astype(np.uint64)))
    excess[token_ids % BLOCK_TOKENS == holder] = 0.0
    return smallest + excess


def smallest_of_blocks(key: int, blocks: Ids) -> tuple[Floats, Ids]:
    """The smallest exponential of each block of token ids, and which of its 64 tokens has it: [n] to [n], [n]."""
    words = _words(key, ~blocks.astype(np.uint64))
    return _exponential(words) / BLOCK_TOKENS, (words % np.uint64(BLOCK_TOKENS)).astype(np.int64)


def _words(key: int, counters: Words) -> Words:
    """64 mixed bits per counter: SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators")."""
    words = (counters + np.uint64(1)) * np.uint64(GOLDEN_GAMMA) + np.uint64(key)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(FIRST_MULTIPLIER)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(SECOND_MULTIPLIER)
    return words ^ (words >> np.uint64(31))


def _mixed(word: int) -> int:
    """The same for one Python integer, which costs a hundredth of an array of one."""
    word &= WORD
    word = ((word ^ (word >> 30)) * FIRST_MULTIPLIER) & WORD
    word = ((word ^ (word >> 27)) * SECOND_MULTIPLIER) & WORD
    return word ^ (word >> 31)


def _exponential(words: Words) -> Floats:
    """-log u with u = (the word's upper 52 bits + ½) / 2^52; the lower bits stay free for other use."""
    uniform = ((words >> np.uint64(64 - UNIFORM_BITS)).astype(np.float64) + 0.5) * 0.5**UNIFORM_BITS
    exponential: Floats = -np.log(uniform)
    return exponential

"""The classic acceptance rule: keep a drafted token with probability min(1, p / q), else draw from what q left over.

Leviathan, Kalman, Matias: "Fast Inference from Transformers via Speculative Decoding", arXiv:2211.17192, algorithm 1
and appendix A.1; Chen et al., arXiv:2302.01318, theorem 1. The committed tokens follow the target's distribution p
whatever q is, as long as the token was drawn from exactly q, independently of the coin and of the recovery. It agrees
with probability 1 - TV(p, q), more often than the coupled rule, but its tokens depend on the proposer.

So q may be cut to its likeliest tokens and rounded, if only the draft draws from what is left. Where these hold the
mass m of the draft's whole distribution, the cut lowers the chance to agree by at most 1 - m (triangle inequality).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NEGLIGIBLE = 1e-12
"""A residual of so little mass is rounding: p and q are the same distribution."""
ROUNDING = 1e-3
"""Weights that were rounded to float32 add up to 1 far better than this."""
MOST_TOKENS = 1024
"""A distribution over more of them is not sparse."""


@dataclass(frozen=True, slots=True)
class Sparse:
    """A distribution that is zero outside a few tokens, and in proportion to the weights on them.

    Weights that are to cross the wire are float32 numbers: both sides then mean the very same distribution. They come
    to 1 but for their rounding, which `of` divides out.
    """

    token_ids: tuple[int, ...]
    weights: tuple[float, ...]

    @classmethod
    def certain(cls, token_id: int) -> Sparse:
        """Of a proposer that has no choice, such as a look-up."""
        return cls((token_id,), (1.0,))

    @classmethod
    def rounded(cls, token_ids: Sequence[int], probabilities: Sequence[float]) -> Sparse:
        """To float32, without what that makes zero."""
        weights = np.asarray(probabilities, dtype=np.float32).tolist()
        kept = [(token_id, weight) for token_id, weight in zip(token_ids, weights, strict=True) if weight > 0.0]
        return cls(tuple(token_id for token_id, _ in kept), tuple(weight for _, weight in kept))

    @property
    def probabilities(self) -> Floats:
        """Of `token_ids`, in their order: [n]."""
        weights = np.array(self.weights)
        probabilities: Floats = weights / weights.sum()
        return probabilities

    def of(self, token_id: int) -> float:
        if token_id not in self.token_ids:
            return 0.0
        return float(self.probabilities[self.token_ids.index(token_id)])

    def without(self, token_id: int) -> Sparse:
        """What the next one is drawn from when that token is not put back."""
        left = [pair for pair in zip(self.token_ids, self.weights, strict=True) if pair[0] != token_id]
        return Sparse(tuple(token_id for token_id, _ in left), tuple(weight for _, weight in left))

    def is_sound(self, vocab_size: int) -> bool:
        """Whether this is a distribution over different tokens below `vocab_size`; the numbers may come from anyone."""
        count = len(self.token_ids)
        return (
            0 < count <= MOST_TOKENS
            and len(self.weights) == len(set(self.token_ids)) == count
            and min(self.token_ids) >= 0
            and max(self.token_ids) < vocab_size
            and all(0.0 < weight < math.inf for weight in self.weights)
            and abs(math.fsum(self.weights) - 1.0) <= ROUNDING
        )


def is_accepted(token_id: int, p: Floats, q: Sparse, coin: float) -> bool:
    """Whether the target takes the token, drawn from q; `coin` is uniform on [0, 1)."""
    drafted = q.of(token_id)
    return drafted > 0.0 and coin * drafted < p[token_id]


def first_accepted(token_ids: Iterable[int], p: Floats, q: Sparse, coins: Iterable[float]) -> tuple[int | None, Floats]:
    """Which of several guesses at one token the target takes, by index, and what it draws from if it takes none.

    They were drawn from q one after the other without putting back. Each that is refused leaves its residual to be the
    next one's target: Jeon et al., "Recursive Speculative Decoding", arXiv:2402.14160, section 3.
    """
    for index, (token_id, coin) in enumerate(zip(token_ids, coins, strict=False)):
        if is_accepted(token_id, p, q, coin):
            return index, p
        p, q = residual(p, q), q.without(token_id)
    return None, p


def residual(p: Floats, q: Sparse) -> Floats:
    """What is drawn from after a rejection: max(p - q, 0), normalised: [V]."""
    left = p.copy()
    left[list(q.token_ids)] -= q.probabilities
    left = left.clip(min=0.0)
    mass = left.sum()
    remaining: Floats = left / mass if mass > NEGLIGIBLE else p
    return remaining

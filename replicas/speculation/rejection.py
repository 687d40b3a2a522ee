"""The classic acceptance rule: keep a drafted token with probability min(1, p / q), else draw from what q left over.

Leviathan, Kalman, Matias: "Fast Inference from Transformers via Speculative Decoding", arXiv:2211.17192, algorithm 1
and appendix A.1; Chen et al., arXiv:2302.01318, theorem 1. The committed tokens follow the target's distribution p
whatever q is, as long as the token was drawn from exactly q, independently of the coin and of the recovery. It agrees
with probability 1 - TV(p, q), more often than the coupled rule, but its tokens depend on the proposer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NEGLIGIBLE = 1e-12
"""A residual of so little mass is rounding: p and q are the same distribution."""


@dataclass(frozen=True, slots=True)
class Sparse:
    """A distribution that is zero outside a few tokens; the probabilities come to 1."""

    token_ids: tuple[int, ...]
    probabilities: tuple[float, ...]

    @classmethod
    def certain(cls, token_id: int) -> Sparse:
        """Of a proposer that has no choice, such as a look-up."""
        return cls((token_id,), (1.0,))

    def of(self, token_id: int) -> float:
        pairs = zip(self.token_ids, self.probabilities, strict=True)
        return next((probability for own, probability in pairs if own == token_id), 0.0)


def is_accepted(token_id: int, p: Floats, q: Sparse, coin: float) -> bool:
    """Whether the target takes the token, drawn from q; `coin` is uniform on [0, 1)."""
    drafted = q.of(token_id)
    return drafted > 0.0 and coin * drafted < p[token_id]


def residual(p: Floats, q: Sparse) -> Floats:
    """What is drawn from after a rejection: max(p - q, 0), normalised: [V]."""
    left = p.copy()
    left[list(q.token_ids)] -= q.probabilities
    left = left.clip(min=0.0)
    mass = left.sum()
    remaining: Floats = left / mass if mass > NEGLIGIBLE else p
    return remaining

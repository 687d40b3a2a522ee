"""How a head picks tokens from its logits: with the target's noise, or for the rejection rule with noise of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from replicas.engine.sampling import Draw, Sampler
from replicas.speculation.rejection import Sparse


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that may follow, likeliest first; none where the logits allow none."""

    token_ids: tuple[int, ...] = ()
    distribution: Sparse | None = None
    """What they were drawn from, in this order and without putting back, where the rejection rule is to judge them."""


class Picker(Protocol):
    """Picks for many rows at once."""

    def pick(self, logits: Tensor, draws: Sequence[Draw], counts: Sequence[int]) -> list[Candidates]:
        """Up to `counts[row]` tokens from each row of logits, float32 [R, V]."""


@dataclass(frozen=True, slots=True)
class CoupledPicker:
    """Races with the target's own noise, so that both agree as often as they can."""

    sampler: Sampler

    def pick(self, logits: Tensor, draws: Sequence[Draw], counts: Sequence[int]) -> list[Candidates]:
        return [Candidates(token_ids) for token_ids in self.sampler.candidates(logits, draws, counts)]


@dataclass(frozen=True, slots=True)
class IndependentPicker:
    """Draws with noise of its own, and says what from."""

    sampler: Sampler

    def pick(self, logits: Tensor, draws: Sequence[Draw], counts: Sequence[int]) -> list[Candidates]:
        drafts = self.sampler.drafts(logits, draws, counts)
        return [Candidates() if draft is None else Candidates(*draft) for draft in drafts]

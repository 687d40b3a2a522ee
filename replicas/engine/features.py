"""The engine's seam to proposers that draft from what the target itself has just computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """The target's states on consecutive committed tokens of one sequence, prompt included."""

    sequence_id: int
    position: int
    """Of the first of these tokens; 0 starts the sequence anew."""
    features: Tensor
    """The tapped states side by side, [n, width]; they may be overwritten by the next step."""
    followers: tuple[int, ...]
    """The committed token after each of them: n."""


class FeatureReader(Protocol):
    """A proposer that reads features. Called from the engine thread; never raises.

    Sequences are read from their first token on, chunk by chunk, also before they are opened; `Proposer.close` ends
    both. Where a chunk is missing, or the reader has no room, the sequence simply gets no draft.
    """

    def read(self, seen: Sequence[Seen]) -> None:
        """After every step: what it brought for sequences that go on."""

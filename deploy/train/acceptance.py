"""What would greedy serving accept? Rounds walked through the target's own answers, counted by drafted position."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Agreement = NDArray[np.bool_]
"""[rows, depth]: whether the j-th token drafted behind row r and the token after it is the target's own.

Row r stands for the hidden state of token r; the draft begins at token r + 2. Later positions are drafted as if all
earlier ones were right, which is the only case in which they count.
"""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts over rounds in which the whole depth could be drafted."""

    rounds: int
    accepted_by_position: tuple[int, ...]
    """Rounds in which the position, and so all before it, was accepted."""

    @property
    def by_position(self) -> tuple[float, ...]:
        """Unconditional: accepted rounds / rounds."""
        return tuple(count / self.rounds if self.rounds else 0.0 for count in self.accepted_by_position)

    @property
    def mean_length(self) -> float:
        """Tokens of a round, the target's own included: 1 + accepted / rounds."""
        return 1 + sum(self.by_position)


def walk(agreement: Agreement, prompt_length: int) -> Acceptance:
    """The rounds of one answer, as a chain of `depth` drafts would be served.

    The first answered token comes from the prompt's own pass, so the first round stands at row prompt_length - 1;
    a round that accepts a drafts commits a + 1 tokens. Rounds that the end of the answer cuts short are left out.
    """
    rows, depth = agreement.shape
    rounds = 0
    accepted = np.zeros(depth, np.int64)
    row = prompt_length - 1
    while row + 1 + depth < rows:
        agreed = np.cumprod(agreement[row])
        accepted += agreed
        rounds += 1
        row += int(agreed.sum()) + 1
    return Acceptance(rounds, tuple(accepted.tolist()))


def pooled(parts: Iterable[Acceptance], depth: int) -> Acceptance:
    """All rounds together."""
    rounds = 0
    accepted = np.zeros(depth, np.int64)
    for part in parts:
        rounds += part.rounds
        accepted += part.accepted_by_position
    return Acceptance(rounds, tuple(accepted.tolist()))

"""How much of a proposal counts: the coupled acceptance rule.

The target draws its own token at every drafted position, with noise keyed by (seed, choice, position, token),
and agrees while the draft guessed that very token. So the committed tokens are the target's own draws and do not
depend on the proposer, which only decides how many of them one step yields. A draft that draws with the same noise
agrees with probability at least (1 - TV) / (1 + TV), TV being the total variation distance of the two distributions
(Daliri, Musco, Suresh: "Coupling without Communication and Drafter-Invariant Speculative Decoding",
arXiv 2408.07978: the bound is met by every exponential, or Gumbel, race).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Acceptance:
    """0 ≤ accepted ≤ drafted; committed has one token more: recovered, or the bonus where all were accepted."""

    accepted: int
    committed: tuple[int, ...]


def accept(drafted: Sequence[int], target: Sequence[int]) -> Acceptance:
    """Commit the target's draws up to and including the first that the draft did not guess.

    `target[i]` is the target's draw given the committed tokens and `drafted[:i]`, so it has one entry more than
    `drafted`. Raises ValueError for any other length.
    """
    if len(target) != len(drafted) + 1:
        raise ValueError(f"{len(drafted)} drafted tokens need {len(drafted) + 1} target draws, not {len(target)}")
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == target[accepted]:
        accepted += 1
    return Acceptance(accepted, tuple(target[: accepted + 1]))

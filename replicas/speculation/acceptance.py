"""How much of a proposal counts: the coupled acceptance rule, for chains and trees.

The target draws its own token at every drafted position, with noise keyed by (seed, choice, position, token),
and agrees while the draft guessed that very token. So the committed tokens are the target's own draws and do not
depend on the proposer, which only decides how many of them one step yields. A draft that draws with the same noise
agrees with probability at least (1 - TV) / (1 + TV), TV being the total variation distance of the two distributions
(Daliri, Musco, Suresh: "Coupling without Communication and Drafter-Invariant Speculative Decoding",
arXiv 2408.07978: the bound is met by every exponential, or Gumbel, race).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from replicas.speculation.tree import ROOT, Draft

Value = TypeVar("Value", covariant=True)


class Rows(Protocol[Value]):
    """One value per verified row; it may be found only when it is asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Value: ...


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Committed has one token more than path: recovered, or the bonus where a whole branch was accepted."""

    path: tuple[int, ...]
    """The accepted nodes, from the first level down; in a chain 0, 1, 2, …"""
    committed: tuple[int, ...]

    @property
    def accepted(self) -> int:
        return len(self.path)


def accept(draft: Draft, target: Rows[int]) -> Acceptance:
    """Commit the target's draws from the root down, as long as a child guessed the draw.

    `target[0]` is the target's draw after the committed tokens and `target[i + 1]` its draw after node i and its
    ancestors, so it has one entry more than the draft. Draws off the accepted branch are not looked at. Raises
    ValueError for any other length.
    """
    if len(target) != len(draft) + 1:
        raise ValueError(f"{len(draft)} drafted tokens need {len(draft) + 1} target draws, not {len(target)}")
    path: list[int] = []
    committed = [target[0]]
    node = ROOT
    for child, token_id in enumerate(draft.token_ids):
        # Children come after their parent, so one pass finds the whole branch.
        if draft.parent(child) == node and token_id == committed[-1]:
            node = child
            path.append(child)
            committed.append(target[child + 1])
    return Acceptance(tuple(path), tuple(committed))

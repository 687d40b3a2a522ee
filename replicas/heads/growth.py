"""One sequence's draft on its way down a tree: which nodes exist, which of them were run, and what those see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from replicas.heads.candidates import Candidates
from replicas.heads.followed import Followed
from replicas.speculation.rejection import Sparse
from replicas.speculation.tree import ROOT, Draft, Tree


@dataclass(slots=True, eq=False)
class Growth:
    """Nodes of the tree become nodes of the draft; where a candidate is missing, all below it is missing too."""

    followed: Followed
    tree: Tree
    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    distributions: list[Sparse] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=lambda: {ROOT: ROOT})
    """The draft's node by the tree's."""
    lineage: dict[int, tuple[int, ...]] = field(default_factory=lambda: {ROOT: ()})
    """Of each node of the tree that was run: the places behind the committed ones that it sees, its own the last."""

    @property
    def run(self) -> int:
        """How many nodes were run; each fills one place of the cache."""
        return len(self.lineage) - 1

    def draft(self) -> Draft:
        is_chain = self.parents == list(range(ROOT, len(self.parents) - 1))
        return Draft(tuple(self.token_ids), () if is_chain else tuple(self.parents), tuple(self.distributions))

    def token(self, node: int) -> int:
        return self.token_ids[self.numbers[node]]

    def branch(self, node: int) -> list[int]:
        """Drafted tokens from the first level down to a node of the tree."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.token(node))
            node = self.tree.parents[node]
        return tokens[::-1]

    def add(self, parent: int, candidates: Candidates) -> None:
        """Hang a node's candidates, likeliest first, where the tree has children for them.

        Judged ones are taken as they were drawn, none left out: what a later one was drawn from depends on it.
        """
        for place, child in enumerate(self.tree.children(parent)):
            rank = place if candidates.distribution else self.tree.ranks[child]
            if rank < len(candidates.token_ids):
                self.numbers[child] = len(self.token_ids)
                self.token_ids.append(candidates.token_ids[rank])
                self.parents.append(self.numbers[parent])
                self.distributions += [candidates.distribution] if candidates.distribution else []

    def next_nodes(self, depth: int) -> list[int]:
        """The drafted nodes of a level that have children to be drafted."""
        return [node for node in self.tree.level(depth) if node in self.numbers and self.tree.children(node)]

    def enter(self, nodes: Sequence[int]) -> Tensor | None:
        """Note that nodes of one level are run next; what they see, as `cache.Span` wants it."""
        first = self.run
        for offset, node in enumerate(nodes):
            self.lineage[node] = (*self.lineage[self.tree.parents[node]], first + offset)
        if len(nodes) == 1 and self.run == len(self.lineage[nodes[0]]):
            return None  # a chain so far
        cached = self.followed.cached
        visible = torch.zeros((len(nodes), cached + self.run), dtype=torch.bool)
        visible[:, :cached] = True
        for row, node in enumerate(nodes):
            visible[row, [cached + place for place in self.lineage[node]]] = True
        return visible

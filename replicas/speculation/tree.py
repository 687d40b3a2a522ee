"""What shape does a draft have? A tree of guesses below the last committed token; a chain is the tree with one branch.

Nodes are numbered level by level, so parents come before children and every prefix of the nodes is a tree too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from replicas.speculation.rejection import Sparse

ROOT = -1
"""Parent of the first level: the last committed token."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The shape that a proposer fills with tokens: node i is the `ranks[i]`-th likeliest child of `parents[i]`."""

    parents: tuple[int, ...]
    ranks: tuple[int, ...]
    """0 is the likeliest."""
    depths: tuple[int, ...]
    """1 below the root; never falls from one node to the next."""
    _children: dict[int, list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            children.setdefault(parent, []).append(node)
        object.__setattr__(self, "_children", children)

    @classmethod
    def chain(cls, length: int) -> Tree:
        return cls.of_counts((1,) * length)

    @classmethod
    def of_counts(cls, counts: Iterable[int]) -> Tree:
        """Every node of a level has the same number of children: `counts[0]` below the root, and so on."""
        paths: list[tuple[int, ...]] = []
        level: list[tuple[int, ...]] = [()]
        for count in counts:
            level = [(*path, rank) for path in level for rank in range(count)]
            paths += level
        return cls.of_paths(paths)

    @classmethod
    def of_paths(cls, paths: Iterable[Sequence[int]]) -> Tree:
        """Nodes named by the ranks that lead to them, as Medusa's choices are: `[[0], [1], [0, 0]]`.

        Raises ValueError for an empty, negative or repeated path, or one whose parent is missing.
        """
        ordered = sorted((tuple(path) for path in paths), key=lambda path: (len(path), path))
        numbers = {(): ROOT, **{path: number for number, path in enumerate(ordered)}}
        for path in ordered:
            if not path or min(path) < 0:
                raise ValueError(f"{list(path)} is not a path of ranks from 0 on")
            if path[:-1] not in numbers:
                raise ValueError(f"path {list(path)} has no parent {list(path[:-1])}")
        if len(numbers) != len(ordered) + 1:
            raise ValueError("a path is named twice")
        return cls(
            tuple(numbers[path[:-1]] for path in ordered),
            tuple(path[-1] for path in ordered),
            tuple(len(path) for path in ordered),
        )

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def depth(self) -> int:
        return self.depths[-1] if self.depths else 0

    def cut(self, depth: int) -> Tree:
        """The same tree without what is deeper."""
        size = sum(own <= depth for own in self.depths)
        return Tree(self.parents[:size], self.ranks[:size], self.depths[:size])

    def level(self, depth: int) -> range:
        """The nodes of one level."""
        return range(sum(own < depth for own in self.depths), sum(own <= depth for own in self.depths))

    def children(self, parent: int) -> Sequence[int]:
        """Nodes right below a node or ROOT, likeliest first."""
        return self._children.get(parent, ())

    def width(self, parent: int) -> int:
        """How many candidates a node needs: one more than the highest rank among its children."""
        children = self.children(parent)
        return self.ranks[children[-1]] + 1 if children else 0

    @property
    def inner_nodes(self) -> int:
        """Nodes with children, the root apart."""
        return len(self._children.keys() - {ROOT})


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens to verify in one step; empty `parents` mean a chain."""

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    distributions: tuple[Sparse, ...] = ()
    """Where the rejection rule is to judge: what each token was drawn from. Siblings, in their order, were drawn from
    the same without putting back. Empty: the coupled rule."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_tree(self) -> bool:
        return bool(self.parents)

    @property
    def depth(self) -> int:
        """Length of the longest branch."""
        return max(self.depths(), default=0)

    def parent(self, node: int) -> int:
        return self.parents[node] if self.parents else node - 1

    def children(self, parent: int) -> list[int]:
        """Nodes right below a node or ROOT."""
        return [node for node in range(len(self.token_ids)) if self.parent(node) == parent]

    def depths(self) -> list[int]:
        found: list[int] = []
        for node in range(len(self.token_ids)):
            parent = self.parent(node)
            found.append(1 if parent == ROOT else found[parent] + 1)
        return found

    def first(self, count: int) -> Draft:
        """The draft without its last nodes."""
        return Draft(self.token_ids[:count], self.parents[:count], self.distributions[:count])

    def branch(self, node: int) -> tuple[int, ...]:
        """Tokens from the first level down to a node, its own included; none for ROOT."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.token_ids[node])
            node = self.parent(node)
        return tuple(reversed(tokens))

    def is_sound(self, vocab_size: int) -> bool:
        """Whether all tokens are below `vocab_size`, every node's one parent comes before it, and where distributions
        are named, the tokens could have been drawn from them."""
        if not all(0 <= token_id < vocab_size for token_id in self.token_ids):
            return False
        if self.parents and len(self.parents) != len(self.token_ids):
            return False
        if not all(ROOT <= parent < node for node, parent in enumerate(self.parents)):
            return False
        return not self.distributions or self._is_judgeable(vocab_size)

    def _is_judgeable(self, vocab_size: int) -> bool:
        if len(self.distributions) != len(self.token_ids):
            return False
        families = (self.children(parent) for parent in {self.parent(node) for node in range(len(self.token_ids))})
        return all(self._were_drawn_together(siblings, vocab_size) for siblings in families)

    def _were_drawn_together(self, siblings: Sequence[int], vocab_size: int) -> bool:
        q = self.distributions[siblings[0]]
        tokens = {self.token_ids[node] for node in siblings}
        is_shared = all(self.distributions[node] == q for node in siblings)
        return is_shared and len(tokens) == len(siblings) and tokens <= set(q.token_ids) and q.is_sound(vocab_size)


NO_DRAFT = Draft()

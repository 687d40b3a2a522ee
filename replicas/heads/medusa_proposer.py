"""Drafts with Medusa heads, in the target's process: all levels of the tree from one hidden state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from fleet.clock import Clock
from fleet.errors import OutOfMemory
from replicas.engine.features import Seen
from replicas.engine.model import allocation_failures
from replicas.heads.candidates import Picker
from replicas.heads.followed import Followed, Following
from replicas.heads.growth import Growth
from replicas.speculation.messages import Closing, Opening, Proposal, SequenceVerdict
from replicas.speculation.proposer import ProposerHealth, ProposerState, Want
from replicas.speculation.tree import ROOT, Tree


class MedusaNetwork(Protocol):
    """Heads that look 2, 3, … tokens ahead of the one whose state they get."""

    def __call__(self, states: Tensor, count: int) -> Tensor:
        """States [n, hidden] to float32 logits [count, n, vocab] of the first `count` heads."""


class MedusaProposer:
    """A `Proposer` and `FeatureReader`. The state of the token before the last committed one is all it keeps."""

    def __init__(self, network: MedusaNetwork, picker: Picker, tree: Tree, clock: Clock) -> None:
        """`tree` is no deeper than there are heads."""
        self._network = network
        self._picker = picker
        self._cuts = [tree.cut(depth) for depth in range(tree.depth + 1)]
        self._clock = clock
        self._following = Following()
        self._seconds = 0.0
        self._out_of_memory = 0

    def read(self, seen: Sequence[Seen]) -> None:
        for chunk in seen:
            followed = self._following.read(chunk)
            if followed is None:
                continue
            try:
                with allocation_failures():
                    # The target's next step may reuse the memory.
                    followed.state = chunk.features[-1].clone()
            except OutOfMemory:
                self._out_of_memory += 1
                followed.is_refused = True

    def open(self, opening: Opening) -> None:
        self._following.open(opening)

    def propose(self, wants: Sequence[Want]) -> Mapping[int, Proposal]:
        started = self._clock.monotonic()
        growths = [
            Growth(followed, self._cuts[min(depth, len(self._cuts) - 1)])
            for followed, depth in self._following.ready(wants)
        ]
        try:
            with allocation_failures():
                self._grow(growths)
        except OutOfMemory:
            self._out_of_memory += 1
            growths = []
        self._seconds = self._clock.monotonic() - started
        return self._following.answers(wants, {growth.followed.sequence_id: growth.draft() for growth in growths})

    def settle(self, verdicts: Sequence[SequenceVerdict]) -> None:
        self._following.settle(verdicts)

    def close(self, closing: Closing) -> None:
        self._following.close(closing.sequence_ids)

    def state(self) -> ProposerState:
        return ProposerState(ProposerHealth.HEALTHY, self._seconds, 0.0, self._out_of_memory)

    @torch.inference_mode()
    def _grow(self, growths: Sequence[Growth]) -> None:
        depth = max((growth.tree.depth for growth in growths), default=0)
        if depth == 0:
            return
        logits = self._network(torch.stack([_state(growth.followed) for growth in growths]), depth)
        for head in range(depth):
            self._draft_level(logits[head], growths, head)

    def _draft_level(self, logits: Tensor, growths: Sequence[Growth], head: int) -> None:
        """A head knows nothing of the branch that it continues: all nodes of a level get the same candidates.

        Penalties see the likeliest branch that goes on. Its length is the level's own, and with it the noise.
        """
        parents = [[ROOT] if head == 0 and len(growth.tree) else growth.next_nodes(head) for growth in growths]
        rows = [row for row, nodes in enumerate(parents) if nodes]
        widths = [max(growths[row].tree.width(node) for node in parents[row]) for row in rows]
        draws = [growths[row].followed.draw(growths[row].branch(parents[row][0])) for row in rows]
        for row, found in zip(rows, self._picker.pick(logits[rows], draws, widths), strict=True):
            for node in parents[row]:
                growths[row].add(node, found)


def _state(followed: Followed) -> Tensor:
    assert followed.state is not None
    return followed.state

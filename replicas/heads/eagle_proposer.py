"""Drafts with an EAGLE head, in the target's process: one pass over what was read, then one per level of the tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fleet.clock import Clock
from fleet.errors import OutOfMemory
from replicas.engine.features import Seen
from replicas.engine.model import allocation_failures
from replicas.engine.transfer import to_device
from replicas.heads.cache import CachedRows, HeadCache, Span
from replicas.heads.candidates import Picker
from replicas.heads.followed import Followed, Following
from replicas.heads.growth import Growth
from replicas.speculation.messages import Closing, Opening, Proposal, SequenceVerdict
from replicas.speculation.proposer import ProposerHealth, ProposerState, Want
from replicas.speculation.tree import ROOT, Tree

BACKLOG_TOKENS = 64
"""So many tokens are run at the latest while drafts are wanted; fewer wait for the next one."""
KEPT_TOKENS = 128
"""While none are wanted nothing is run, and of what was read the last tokens are kept, so many at the least: the head
goes on from these alone. Its positions are relative, so it takes them for the beginning of the text."""


class EagleNetwork(Protocol):
    """An EAGLE or EAGLE-3 head. States are [n, hidden], in the head's dtype."""

    def fuse(self, features: Tensor) -> Tensor:
        """The target's features [n, width] on verified tokens as states."""

    def __call__(self, token_ids: Tensor, states: Tensor, rows: CachedRows) -> Tensor:
        """For each state and the token (int64 [n]) after it, the state of that token; it is cached."""

    def logits(self, states: Tensor) -> Tensor:
        """Of the tokens after the ones that states are of: float32 [n, target vocabulary]."""


@dataclass(frozen=True, slots=True)
class DraftShape:
    """What is drafted, and how long a sequence may be for it."""

    tree: Tree
    context: int
    """Tokens, prompt included, up to which the head was trained."""


class EagleProposer:
    """A `Proposer` and `FeatureReader`. Its cache keeps only what was computed from the target's own features."""

    def __init__(
        self, network: EagleNetwork, cache: HeadCache, picker: Picker, shape: DraftShape, clock: Clock
    ) -> None:
        self._network = network
        self._cache = cache
        self._picker = picker
        self._shape = shape
        self._cuts = [shape.tree.cut(depth) for depth in range(shape.tree.depth + 1)]
        self._clock = clock
        self._following = Following()
        self._seconds = 0.0
        self._out_of_memory = 0

    @property
    def used_tokens(self) -> int:
        """Places of the cache that are taken."""
        return self._cache.used_tokens

    @property
    def cache_bytes(self) -> int:
        return self._cache.size_bytes

    def read(self, seen: Sequence[Seen]) -> None:
        overdue = []
        for chunk in seen:
            if chunk.position == 0:
                self._cache.release([chunk.sequence_id])
            followed = self._following.read(chunk)
            if followed is not None and self._keep(followed, chunk):
                overdue.append(followed)
        try:
            with allocation_failures():
                self._catch_up(overdue)
        except OutOfMemory:
            self._out_of_memory += 1
            self._refuse(overdue)

    def open(self, opening: Opening) -> None:
        self._following.open(opening)

    def propose(self, wants: Sequence[Want]) -> Mapping[int, Proposal]:
        started = self._clock.monotonic()
        ready = self._following.ready(wants)
        try:
            with allocation_failures():
                self._catch_up([followed for followed, _ in ready])
                growths = [self._growth(followed, depth) for followed, depth in ready if not followed.is_refused]
                self._grow(growths)
        except OutOfMemory:
            self._out_of_memory += 1
            self._refuse(followed for followed, _ in ready)
            growths = []
        self._seconds = self._clock.monotonic() - started
        return self._following.answers(wants, {growth.followed.sequence_id: growth.draft() for growth in growths})

    def settle(self, verdicts: Sequence[SequenceVerdict]) -> None:
        self._following.settle(verdicts)

    def close(self, closing: Closing) -> None:
        self._following.close(closing.sequence_ids)
        self._cache.release(closing.sequence_ids)

    def state(self) -> ProposerState:
        return ProposerState(ProposerHealth.HEALTHY, self._seconds, 0.0, self._out_of_memory)

    def _keep(self, followed: Followed, chunk: Seen) -> bool:
        """Put a chunk into the backlog; True where that is so long that it should be run."""
        try:
            with allocation_failures():
                has_gap = followed.keep(chunk, None if followed.is_wanted else KEPT_TOKENS)
        except OutOfMemory:
            self._out_of_memory += 1
            self._refuse([followed])
            return False
        if has_gap:
            followed.cached = 0
            self._cache.release([followed.sequence_id])
        return followed.is_wanted and followed.pending >= BACKLOG_TOKENS

    def _growth(self, followed: Followed, depth: int) -> Growth:
        """The tree that fits into what is wanted, the head's context and its memory."""
        room = max(0, self._shape.context - followed.base_length)
        tree = self._cuts[min(depth, room, self._shape.tree.depth)]
        if self._place(followed, followed.cached + tree.inner_nodes) is None:
            tree = self._cuts[min(1, tree.depth)]
        return Growth(followed, tree)

    @torch.inference_mode()
    def _catch_up(self, sequences: Sequence[Followed]) -> None:
        """Run what was read, in one pass; afterwards every sequence has its state or is refused."""
        works = [followed for followed in sequences if self._can_catch_up(followed)]
        if not works:
            return
        spans = [Span(self._cache.start(followed.sequence_id), followed.cached, followed.pending) for followed in works]
        chunks = [chunk for followed in works for chunk in followed.backlog]
        token_ids = [token_id for chunk in chunks for token_id in chunk.followers]
        positions = [span.position + offset for span in spans for offset in range(span.length)]
        fused = self._network.fuse(torch.cat([chunk.features for chunk in chunks]))
        states = self._run(token_ids, fused, CachedRows(self._cache, spans, positions))
        ends = torch.tensor([span.length for span in spans]).cumsum(0) - 1
        for followed, span, state in zip(works, spans, states[to_device(ends, states.device)], strict=True):
            followed.cached = span.position + span.length
            followed.backlog.clear()
            followed.state = state

    def _can_catch_up(self, followed: Followed) -> bool:
        """Whether there is something to run and, now reserved, room for it; a sequence without room is refused."""
        if not followed.pending or followed.is_refused:
            return False
        if followed.read > self._shape.context or self._place(followed, followed.cached + followed.pending) is None:
            self._refuse([followed])
        return not followed.is_refused

    @torch.inference_mode()
    def _grow(self, growths: Sequence[Growth]) -> None:
        """Draft level by level, all sequences together."""
        tips = [(growth, ROOT) for growth in growths if len(growth.tree)]
        states = [growth.followed.state for growth, _ in tips]
        known = torch.stack([state for state in states if state is not None]) if tips else torch.empty(0)
        depth = 0
        while tips:
            self._draft_children(tips, known)
            depth += 1
            tips, known = self._descend(tips, known, depth)

    def _draft_children(self, tips: Sequence[tuple[Growth, int]], states: Tensor) -> None:
        draws = [growth.followed.draw(growth.branch(node)) for growth, node in tips]
        widths = [growth.tree.width(node) for growth, node in tips]
        candidates = self._picker.pick(self._network.logits(states), draws, widths)
        for (growth, node), found in zip(tips, candidates, strict=True):
            growth.add(node, found)

    def _descend(
        self, tips: Sequence[tuple[Growth, int]], states: Tensor, depth: int
    ) -> tuple[list[tuple[Growth, int]], Tensor]:
        """Run the nodes of a level that have children: these nodes, and their states."""
        row_of = {(id(growth), node): row for row, (growth, node) in enumerate(tips)}
        spans: list[Span] = []
        below: list[tuple[Growth, int]] = []
        for growth in dict.fromkeys(growth for growth, _ in tips):
            nodes = growth.next_nodes(depth)
            position = growth.followed.cached + growth.run
            start = self._place(growth.followed, position + len(nodes))
            if nodes and start is not None:
                spans.append(Span(start, position, len(nodes), growth.enter(nodes)))
                below += [(growth, node) for node in nodes]
        if not below:
            return [], states
        above = [row_of[id(growth), growth.tree.parents[node]] for growth, node in below]
        token_ids = [growth.token(node) for growth, node in below]
        positions = [growth.followed.cached + depth - 1 for growth, _ in below]
        parents = states[to_device(torch.tensor(above), states.device)]
        return below, self._run(token_ids, parents, CachedRows(self._cache, spans, positions))

    def _run(self, token_ids: Sequence[int], states: Tensor, rows: CachedRows) -> Tensor:
        return self._network(to_device(torch.tensor(token_ids), states.device), states, rows)

    def _place(self, followed: Followed, needed: int) -> int | None:
        return self._cache.place(followed.sequence_id, followed.cached, needed)

    def _refuse(self, sequences: Iterable[Followed]) -> None:
        for followed in sequences:
            followed.is_refused = True
            followed.backlog.clear()
            followed.state = None
            self._cache.release([followed.sequence_id])

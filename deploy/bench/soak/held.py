"""What do requests hold at this moment, anywhere between client and draft? At rest it must be nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deploy.bench.growth import container_sizes, reachable
from replicas.engine.kv_extents import KvExtents

SLOTS = ("Engine._sequences",)
STREAMS = ("RouterStream._open", "StreamLedger._lives", "StreamLedger._ended", "_Session._inboxes")
DRAFTS = (
    "DraftLengths._sequences",
    "DraftLengths._undrafted_steps",
    "TargetSession._sequences",
    "DraftSession._sequences",
    "DraftEngine._held",
    "Following._by_id",
    "HeadCache._held",
    "NgramProposer._sequences",
    "SuffixProposer._texts",
)
"""One entry per sequence that is speculated on; each proposer has some of them."""


@dataclass(frozen=True, slots=True)
class Held:
    """Counts over target, client and whatever of the draft is in this process."""

    slots: int
    """Sequences that the engine knows, waiting ones included."""
    blocks: int
    """KV tokens reserved: the target's, a head's and the draft's."""
    streams: int
    """Entries in the token streams' ledgers, of both ends."""
    drafts: int
    """Entries of the proposer, its draft lengths and the verify session's two ends."""

    @property
    def is_nothing(self) -> bool:
        return self == NOTHING

    def __str__(self) -> str:
        return f"{self.slots} / {self.blocks} / {self.streams} / {self.drafts}"


NOTHING = Held(0, 0, 0, 0)


def held(roots: Iterable[object]) -> Held:
    """Read from the objects themselves, by way of everything of ours that `roots` refer to."""
    roots = tuple(roots)
    sizes = container_sizes(roots)
    blocks = sum(value.used_tokens for _, value in reachable(roots) if isinstance(value, KvExtents))
    return Held(_sum(sizes, SLOTS), blocks, _sum(sizes, STREAMS), _sum(sizes, DRAFTS))


def _sum(sizes: Mapping[str, int], names: Iterable[str]) -> int:
    return sum(sizes.get(name, 0) for name in names)

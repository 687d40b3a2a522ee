"""What a pass over the model is given: every sequence's new tokens, laid end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from replicas.engine.span import Span


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive new tokens of one sequence."""

    extent_start: int
    position: int
    """Tokens of the sequence that are cached already."""
    token_ids: tuple[int, ...]
    logit_rows: int
    """Logits are wanted for the last so many tokens."""
    parents: tuple[int, ...] = ()
    """A drafted tree: for each of the last `len(parents)` tokens its parent, an index among these or -1 for the token
    before them; parents come first. Empty: a chain. A tree token's position is that of its parent plus one, and it
    sees the tokens before the tree, its ancestors and itself."""


@dataclass(slots=True)
class Packing:
    """All segments' tokens laid end to end."""

    spans: list[Span] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    """Packed rows whose logits are wanted."""


def pack(segments: Sequence[Segment]) -> Packing:
    packing = Packing()
    for segment in segments:
        length = len(segment.token_ids)
        span = Span(len(packing.tokens), length, segment.extent_start, segment.position, segment.parents)
        packing.spans.append(span)
        packing.tokens.extend(segment.token_ids)
        packing.positions.extend(span.positions())
        packing.slots.extend(span.places())
        packing.rows.extend(range(len(packing.tokens) - segment.logit_rows, len(packing.tokens)))
    return packing

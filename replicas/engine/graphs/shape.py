"""Which steps are recorded, and to which shape is such a step padded?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from replicas.engine.span import Span

MOST_ROWS = 32
"""Of a span. Longer ones are chunks of prompts or very large trees; a row's sight is one int64."""
MOST_TOKENS = 512
"""Of a padded step. Beyond it a GPU computes for longer than launching the kernels takes."""
FREE_TOKENS = 128
"""Of a padded step. Up to so many, reading a weight takes a GPU longer than computing with it: padding is free."""
MOST_PADDING = 2
"""All spans padded to the longest may come to so many times the rows, and the keys, that they have themselves."""
FIRST_KEYS = 256
"""Contexts up to this are not told apart."""
KEYS_MULTIPLE = 16
"""The fused kernels read masks whose rows are aligned."""


@dataclass(frozen=True, slots=True)
class GraphShape:
    """So many spans of so many rows, none of which sees more than so many keys; all powers of two."""

    spans: int
    rows: int
    keys: int

    @property
    def tokens(self) -> int:
        return self.spans * self.rows

    def keys_within(self, window: int | None) -> int:
        """Keys that one span's rows see together where each sees `window` positions, itself included."""
        if window is None:
            return self.keys
        seen = window - 1 + self.rows
        return min(self.keys, -(-seen // KEYS_MULTIPLE) * KEYS_MULTIPLE)


def shape_of(spans: Sequence[Span], most_places: int) -> GraphShape | None:
    """The shape that holds these spans; None where the step is too large, or they too unequal, to be worth a graph.

    `most_places` bounds what is gathered for one layer: keys of all spans together.
    """
    rows = power_of_two(max(span.length for span in spans))
    keys = max(FIRST_KEYS, power_of_two(max(span.end for span in spans)))
    shape = GraphShape(power_of_two(len(spans)), rows, keys)
    if rows > MOST_ROWS or shape.tokens > MOST_TOKENS or shape.spans * keys > most_places:
        return None
    return None if _is_ragged(spans, shape) else shape


def _is_ragged(spans: Sequence[Span], shape: GraphShape) -> bool:
    """Whether most of what is computed or gathered would be padding to the longest span or context.

    Equal spans never are: a power of two is less than twice of what it holds.
    """
    tokens = sum(span.length for span in spans)
    keys = sum(max(span.end, FIRST_KEYS) for span in spans)
    wastes_rows = shape.tokens > FREE_TOKENS and len(spans) * shape.rows > MOST_PADDING * tokens
    return wastes_rows or len(spans) * shape.keys > MOST_PADDING * keys


def power_of_two(number: int) -> int:
    """The smallest one that is at least `number` > 0."""
    return 1 << (number - 1).bit_length()

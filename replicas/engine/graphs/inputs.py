"""Where does a recorded step find its tokens? In one buffer that every step fills anew with one copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from replicas.engine.graphs.shape import GraphShape
from replicas.engine.span import Span
from replicas.engine.transfer import overwrite

SELF = 1
"""The sight of a row of padding: the span's first row, so that it sees something."""


class GraphInputs:
    """Views of one int64 buffer on the device; their addresses never change.

    A padded row or span is written to the scratch place, which no real row sees, and nobody reads what it computes.
    """

    def __init__(self, shape: GraphShape, scratch: int, device: torch.device) -> None:
        self.shape = shape
        self._scratch = scratch
        self._buffer = torch.empty(5 * shape.tokens + 3 * shape.spans, dtype=torch.int64, device=device)
        rows, packed, spans = torch.split(self._buffer, [4 * shape.tokens, shape.tokens, 3 * shape.spans])
        self.token_ids, self.positions, self.slots, self.sight = rows.view(4, shape.spans, shape.rows).unbind(0)
        """`[spans, rows]` each: what to embed, where it stands, where to cache it, and `Span.sight`."""
        self.starts, self.cached, self.lengths = spans.view(3, shape.spans).unbind(0)
        """`[spans]` each: first place of the extent, tokens cached before the span, and its own."""
        self._packed: Tensor = packed

    def fill(self, spans: Sequence[Span], token_ids: Sequence[int]) -> None:
        """Lay out a step that has this shape; `token_ids` are packed, span by span."""
        rows = np.zeros((4, self.shape.spans, self.shape.rows), dtype=np.int64)
        rows[2], rows[3] = self._scratch, SELF
        places = np.zeros((3, self.shape.spans), dtype=np.int64)
        places[0], places[2] = self._scratch, 1
        packed: list[int] = []
        for index, span in enumerate(spans):
            own = token_ids[span.row : span.row + span.length]
            rows[:, index, : span.length] = (own, span.positions(), span.places(), span.sight())
            places[:, index] = (span.extent_start, span.position, span.length)
            packed.extend(range(index * self.shape.rows, index * self.shape.rows + span.length))
        packed += [0] * (self.shape.tokens - len(packed))
        words = np.concatenate((rows.ravel(), packed, places.ravel()))
        overwrite(self._buffer, torch.from_numpy(words))

    def packed(self, tokens: int) -> Tensor:
        """Which of the padded rows the step's first `tokens` packed ones are: int64 `[tokens]`."""
        return self._packed[:tokens]

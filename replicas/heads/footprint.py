"""How much of a head's file is kept once it is loaded? From names and shapes alone. Pure."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import replace

from replicas.engine.footprint import Footprint, LinearSize, Shape, footprint_of

INDEXES = frozenset({"d2t", "t2d", "token_map"})
"""Tables of token ids, which are no parameters."""


def head_footprint(shapes: Mapping[str, Shape], narrow: Container[str], *, is_target_narrow: bool) -> Footprint:
    """Of an EAGLE, EAGLE-3 or Medusa head; `narrow` as for `footprint_of`. Indexes count as nothing.

    A `d2t` without an output layer of the head's own names rows of the target's, which are laid out for the head again.
    `is_target_narrow` says of their values what `narrow` says of the head's own.
    """
    kept = {name: _kept(name, shape, shapes) for name, shape in shapes.items() if name not in INDEXES}
    own = footprint_of(kept, narrow)
    if "d2t" not in shapes or "lm_head.weight" in shapes or "fc.weight" not in shapes:
        return own
    return replace(own, copied=LinearSize(math.prod(shapes["d2t"]), shapes["fc.weight"][0], is_target_narrow))


def _kept(name: str, shape: Shape, shapes: Mapping[str, Shape]) -> Shape:
    """Medusa's output layers are cut to the tokens of a `token_map`."""
    if "token_map" not in shapes or not name.startswith("lm_head"):
        return shape
    return (min(shape[0], math.prod(shapes["token_map"])), *shape[1:])

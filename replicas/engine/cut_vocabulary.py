"""A draft's vocabulary: those of the target's tokens that its output layer has rows for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fleet.errors import ConfigError

DRAFT_TO_TARGET = "d2t"
"""Of a draft or head that has rows for the most frequent tokens only: what to add to a row's number for its token."""


@dataclass(frozen=True, slots=True)
class CutVocabulary:
    """Some of the target's tokens, in the order of the rows."""

    token_ids: Tensor
    """int64 [size], all different; see `cut_vocabulary`."""
    vocab_size: int
    """The target's."""

    def everywhere(self, logits: Tensor) -> Tensor:
        """Logits of the rows, [..., size], as those of all tokens, [..., vocab_size]: the others are impossible."""
        spread = logits.new_full((*logits.shape[:-1], self.vocab_size), -math.inf)
        return spread.index_copy_(-1, self.token_ids, logits)


def cut_vocabulary(token_ids: Tensor, vocab_size: int, source: str) -> CutVocabulary:
    """Token ids as they stand in a file, [size]. ConfigError, naming their source, where they are no vocabulary."""
    _require_list(token_ids, source)
    ids = token_ids.long()
    is_within = bool(((ids >= 0) & (ids < vocab_size)).all())
    if not len(ids) or not is_within or len(torch.unique(ids)) != len(ids):
        raise ConfigError(f"{source} does not lead to {len(ids)} different tokens below {vocab_size}")
    return CutVocabulary(ids, vocab_size)


def offset_vocabulary(offsets: Tensor, vocab_size: int, source: str) -> CutVocabulary:
    """The same of `d2t`, [size]: row r stands for the token r + offsets[r]."""
    _require_list(offsets, source)
    ids = offsets.long() + torch.arange(len(offsets), device=offsets.device)
    return cut_vocabulary(ids, vocab_size, source)


def _require_list(numbers: Tensor, source: str) -> None:
    if numbers.ndim != 1:
        raise ConfigError(f"{source} is no list of numbers: its shape is {[*numbers.shape]}")

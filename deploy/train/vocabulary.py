"""Which tokens can be drafted? The most frequent ones of the answers, numbered anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deploy.train.dialogues import Example


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """Token ids that can be drafted, ascending: the i-th has draft id i."""

    target_ids: Tensor
    """int64 [size]."""
    vocab_size: int
    """The target's."""

    def __len__(self) -> int:
        return len(self.target_ids)

    @property
    def d2t(self) -> Tensor:
        """int64 [size]: what to add to a draft id for the target's id, as EAGLE-3 files have it."""
        return self.target_ids - torch.arange(len(self), device=self.target_ids.device)

    @property
    def t2d(self) -> Tensor:
        """bool [vocab_size]: which of the target's tokens can be drafted."""
        found = torch.zeros(self.vocab_size, dtype=torch.bool, device=self.target_ids.device)
        return found.index_fill(0, self.target_ids, True)

    def draft_ids(self, tokens: Tensor) -> Tensor:
        """Draft ids of the target's ids, -1 for those that cannot be drafted."""
        known = torch.full((self.vocab_size,), -1, device=tokens.device)
        known[self.target_ids] = torch.arange(len(self), device=tokens.device)
        return known[tokens]


def most_frequent(
    examples: Iterable[Example], size: int, vocab_size: int, always: Sequence[int] = ()
) -> DraftVocabulary:
    """The `size` tokens that occur most often in the answers, `always` first; lower ids go first among equals."""
    counts = np.zeros(vocab_size, np.int64)
    for example in examples:
        counts += np.bincount(example.tokens[example.prompt_length :], minlength=vocab_size)
    counts[list(always)] = np.iinfo(np.int64).max
    chosen = np.argsort(-counts, kind="stable")[: min(size, vocab_size)]
    return DraftVocabulary(torch.from_numpy(np.sort(chosen)), vocab_size)


def coverage(vocabulary: DraftVocabulary, examples: Iterable[Example]) -> float:
    """Share of the answers' tokens that can be drafted."""
    can = vocabulary.t2d.numpy(force=True)
    answers = [example.tokens[example.prompt_length :] for example in examples]
    tokens = np.concatenate(answers) if answers else np.zeros(0, np.int32)
    return float(can[tokens].mean()) if len(tokens) else 0.0

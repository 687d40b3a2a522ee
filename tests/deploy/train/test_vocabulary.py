"""The draft vocabulary and its maps."""

from __future__ import annotations

import numpy as np
import torch

from deploy.train.dialogues import Example
from deploy.train.vocabulary import coverage, most_frequent

ANSWERS = [
    Example(np.asarray([9, 9, 9, 9, 5, 7, 7], np.int32), 4, False),
    Example(np.asarray([9, 5, 5, 2], np.int32), 1, False),
]


def test_the_most_frequent_tokens_of_the_answers_are_chosen_in_ascending_order() -> None:
    vocabulary = most_frequent(ANSWERS, 3, 12)
    assert vocabulary.target_ids.tolist() == [2, 5, 7]


def test_tokens_that_must_be_there_come_first_and_unseen_ones_last() -> None:
    assert most_frequent(ANSWERS, 2, 12, always=(11,)).target_ids.tolist() == [5, 11]
    assert most_frequent(ANSWERS, 5, 12).target_ids.tolist() == [0, 1, 2, 5, 7]
    assert len(most_frequent(ANSWERS, 99, 12)) == 12


def test_d2t_is_an_offset_and_t2d_a_mask() -> None:
    vocabulary = most_frequent(ANSWERS, 3, 12)
    assert vocabulary.d2t.dtype == torch.int64
    assert vocabulary.d2t.tolist() == [2, 4, 5]
    assert [i + offset for i, offset in enumerate(vocabulary.d2t.tolist())] == [2, 5, 7]
    assert vocabulary.t2d.nonzero().flatten().tolist() == [2, 5, 7]
    assert vocabulary.draft_ids(torch.tensor([7, 3, 2])).tolist() == [2, -1, 0]


def test_coverage_counts_answered_tokens_only() -> None:
    vocabulary = most_frequent(ANSWERS, 2, 12)
    assert vocabulary.target_ids.tolist() == [5, 7]
    assert coverage(vocabulary, ANSWERS) == 5 / 6
    assert coverage(vocabulary, []) == 0.0

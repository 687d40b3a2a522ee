"""The cache of the target's hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deploy.train.dialogues import Example
from deploy.train.features import Features

WIDTH = 4
EXAMPLES = [Example(np.arange(length, dtype=np.int32), 1, False) for length in (3, 5, 4)]


class Counting:
    """States that say which token and tap they are of; counts the tokens that were run."""

    def __init__(self, *taps: int) -> None:
        self.tokens = 0
        self.taps = taps

    def states(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        self.tokens += sum(map(len, sequences))
        scales = torch.tensor(self.taps).repeat_interleave(WIDTH)
        return [(torch.tensor(own)[:, None] * scales).bfloat16() for own in sequences]


def test_states_are_computed_once_and_are_the_same_from_disk(tmp_path: Path) -> None:
    source = Counting(1)
    first = Features(source, tmp_path, 10_000).of(EXAMPLES)
    again = Features(source, tmp_path, 10_000).of(EXAMPLES)
    assert source.tokens == 12
    assert torch.equal(first, again)
    assert first[:, 0].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 3]


def test_the_folder_stays_within_its_budget_and_the_rest_is_recomputed(tmp_path: Path) -> None:
    source = Counting(1)
    features = Features(source, tmp_path, 30)  # the first example needs 24 bytes
    first, again = features.of(EXAMPLES), features.of(EXAMPLES)
    assert torch.equal(first, again)
    assert source.tokens == 12 + 9
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_a_kill_cut_short_is_made_again(tmp_path: Path) -> None:
    source = Counting(1)
    Features(source, tmp_path, 10_000).of(EXAMPLES[:1])
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    assert Features(source, tmp_path, 10_000).of(EXAMPLES[:1])[:, 0].tolist() == [0, 1, 2]


def test_what_one_proposer_needed_is_there_for_the_next(tmp_path: Path) -> None:
    several, one = Counting(2, 5), Counting(5)
    both = Features(several, tmp_path, 10_000).of(EXAMPLES)
    assert torch.equal(Features(one, tmp_path, 10_000).of(EXAMPLES), both[:, WIDTH:])
    assert one.tokens == 0

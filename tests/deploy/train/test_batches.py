"""Which examples make a step, and the rows of a batch."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from deploy.train.batches import packed, plan_steps
from deploy.train.dialogues import Example

LENGTHS = st.lists(st.integers(2, 40), min_size=1, max_size=30)


@given(LENGTHS, st.integers(8, 100), st.integers(1, 3), st.integers(0, 9))
def test_every_epoch_has_every_example_once_in_steps_of_the_wanted_size(
    lengths: list[int], batch_tokens: int, epochs: int, seed: int
) -> None:
    steps = plan_steps(lengths, batch_tokens, epochs, seed)
    flat = [index for step in steps for index in step]
    for epoch in range(epochs):
        own = flat[epoch * len(lengths) : (epoch + 1) * len(lengths)]
        assert sorted(own) == list(range(len(lengths)))
    for step in steps:
        assert len(step) == 1 or sum(lengths[index] for index in step) <= batch_tokens
    assert steps == plan_steps(lengths, batch_tokens, epochs, seed)


def test_epochs_differ_in_their_order() -> None:
    first, second = plan_steps([5] * 20, 100, 2, 0)
    assert first != second


def test_rows_know_their_place_and_what_is_taught() -> None:
    examples = [Example(np.asarray(tokens, np.int32), 2, False) for tokens in ([1, 2, 3, 4], [5, 6, 7])]
    batch = packed(examples, torch.zeros(7, 3), torch.device("cpu"))
    assert batch.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert batch.places.tolist() == [0, 1, 2, 3, 0, 1, 2]
    # After token 2 comes the first answered one, after the last token nothing.
    assert batch.is_taught.tolist() == [False, True, True, False, False, True, False]
    assert batch.ahead(2).tolist() == [2, 3, 3, 3, 6, 6, 6]
    assert batch.is_taught_ahead(1).tolist() == [True, True, False, False, True, False, False]

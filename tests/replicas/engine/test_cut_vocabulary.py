"""A part of a vocabulary: which files name one, and that its logits are those of the whole head."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fleet.errors import ConfigError
from replicas.engine.cut_vocabulary import cut_vocabulary, offset_vocabulary
from replicas.engine.model import load_model
from tests.tiny_models import SIZES, family_configs, tiny_model_folder

DRAFTED = torch.tensor([7, 3, 399, 0, 250])


def test_offsets_lead_to_tokens_and_all_others_are_impossible() -> None:
    vocabulary = offset_vocabulary(torch.tensor([5, -1, 1]), 6, "d2t")
    assert vocabulary.token_ids.tolist() == [5, 0, 3]
    logits = torch.tensor([[[1.0, 2.0, 3.0]]])
    assert vocabulary.everywhere(logits).tolist() == [[[2.0, -math.inf, -math.inf, 3.0, -math.inf, 1.0]]]


@pytest.mark.parametrize("token_ids", [[], [3, 3], [-1, 2], [1, 6]], ids=["none", "twice", "below", "above"])
def test_what_is_no_part_of_the_vocabulary_is_refused(token_ids: list[int]) -> None:
    with pytest.raises(ConfigError, match=f"the map does not lead to {len(token_ids)} different tokens below 6"):
        cut_vocabulary(torch.tensor(token_ids), 6, "the map")


@pytest.mark.parametrize("shape", [(), (4, 1)])
@pytest.mark.parametrize("read", [cut_vocabulary, offset_vocabulary])
def test_what_is_no_list_is_refused(read: Callable[..., object], shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="the map is no list of numbers"):
        read(torch.zeros(shape, dtype=torch.int64), 6, "the map")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "gemma2"], ids=["own-head", "embedding-and-soft-cap"])
def test_a_heads_rows_for_some_tokens_give_the_logits_that_the_whole_head_gives(
    family: str, dtype: str, tmp_path: Path
) -> None:
    folder = tiny_model_folder(tmp_path, family_configs()[family])
    model = load_model(folder, dtype=dtype, device="cpu", kv_tokens=10)
    states = torch.randn((4, SIZES["hidden_size"]), generator=torch.Generator().manual_seed(0))
    states = states.to(model.embedding.dtype)
    cut = model.cut_head(DRAFTED)(states)
    assert cut.dtype == torch.float32
    allowed = 1e-5 if states.dtype == torch.float32 else 0.05  # where the machine computes in bfloat16
    torch.testing.assert_close(cut, model.head(states)[:, DRAFTED], rtol=0, atol=allowed)

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from fleet.errors import ConfigError
from replicas.engine.model import load_model
from replicas.engine.packing import Segment
from tests.tiny_models import SIZES, tiny_model_folder

TOKENS = tuple(range(20, 30))


def logits(folder: Path, dtype: str = "float32") -> Tensor:
    model = load_model(folder, dtype=dtype, device="cpu", kv_tokens=64)
    return model.forward([Segment(0, 0, TOKENS, len(TOKENS))]).logits


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_shards_are_read_like_one_file_and_strangers_beside_them_are_not(tmp_path: Path) -> None:
    whole = tiny_model_folder(tmp_path / "whole")
    shards = tiny_model_folder(tmp_path / "shards")
    model = AutoModelForCausalLM.from_pretrained(whole)
    (shards / "model.safetensors").unlink()
    model.save_pretrained(shards, max_shard_size="40KB")
    assert len(list(shards.glob("*.safetensors"))) > 1
    save_file({"model.norm.weight": torch.zeros(3)}, shards / "zz.safetensors")
    assert torch.equal(logits(shards), logits(whole))


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_weights_of_any_width_compute_as_their_values(tmp_path: Path, stored: torch.dtype) -> None:
    narrow, wide = tiny_model_folder(tmp_path / "narrow"), tiny_model_folder(tmp_path / "wide")
    rewrite(narrow, lambda tensors: tensors.update({name: each.to(stored) for name, each in tensors.items()}))
    rewrite(wide, lambda tensors: tensors.update({name: each.to(stored).float() for name, each in tensors.items()}))
    assert torch.equal(logits(narrow), logits(wide))


def test_in_bfloat16_weights_are_rounded_to_it_wherever_the_model_computes(tmp_path: Path) -> None:
    wide, rounded = tiny_model_folder(tmp_path / "wide"), tiny_model_folder(tmp_path / "rounded")
    rewrite(rounded, lambda tensors: tensors.update({name: each.bfloat16() for name, each in tensors.items()}))
    assert not torch.equal(logits(wide), logits(rounded))
    assert torch.equal(logits(wide, "bfloat16"), logits(rounded, "bfloat16"))


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    tied = tiny_model_folder(tmp_path / "tied", LlamaConfig(**SIZES, tie_word_embeddings=True))
    untied = tiny_model_folder(tmp_path / "untied", LlamaConfig(**SIZES))
    tensors = load_file(tied / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, untied / "model.safetensors", metadata={"format": "pt"})
    expected = logits(untied)
    assert torch.equal(logits(tied), expected)

    rewrite(tied, lambda tensors: tensors.update({"lm_head.weight": tensors.pop("model.embed_tokens.weight")}))
    assert torch.equal(logits(tied), expected), "tied weights may be stored under the head's name"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model.layers.2.mlp.up_proj.weight"), r"lacks .* model\.layers\.2\.mlp\.up_proj"),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.zeros(7)}),
            r"model\.norm\.weight is \[7\] .* says \[48\]",
        ),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.zeros(48, dtype=torch.int8)}),
            r"model\.norm\.weight is I8 .* use weights in bfloat16",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    folder = tiny_model_folder(tmp_path)
    rewrite(folder, change)
    with pytest.raises(ConfigError, match=message) as wrong:
        logits(folder)
    assert "\n" not in str(wrong.value)


def test_a_file_that_is_no_safetensors_is_named(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path)
    (folder / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(ConfigError, match=r"model\.safetensors is not a readable safetensors file"):
        logits(folder)

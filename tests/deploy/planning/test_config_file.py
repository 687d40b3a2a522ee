"""What is read from a config.json, and what is said where it cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.planning.config_file import find_architecture, parse_architecture, shipped_names
from fleet.errors import ConfigError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    "name",
    ["meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B", "mistralai/Mistral-7B-v0.1", "google/gemma-3-27b-it"],
)
def test_a_hub_name_finds_the_shipped_facts_of_its_base(name: str) -> None:
    assert find_architecture(name).name in shipped_names()


def test_a_folder_and_its_config_are_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert find_architecture(str(folder)) == find_architecture(str(folder / "config.json"))
    assert find_architecture(str(folder)).name == "mine"


def test_absent_keys_mean_what_the_family_means_by_them() -> None:
    model = parse_architecture(LLAMA, "m")
    assert (model.kv_heads, model.head_dim, model.stored_format) == (4, 16, "bfloat16")
    assert model.windows == (None,) * 6
    gemma = parse_architecture(
        {"model_type": "gemma3_text", **{k: v for k, v in LLAMA.items() if k in GEMMA_GIVES}}, "g"
    )
    assert (gemma.heads, gemma.kv_heads, gemma.head_dim, gemma.vocabulary) == (8, 4, 256, 262208)


GEMMA_GIVES = ("hidden_size", "intermediate_size", "num_hidden_layers")


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 8}, (8, 8, 8, 8, 8, 8)),
        ({"model_type": "mistral", "sliding_window": None}, (None,) * 6),
        ({"model_type": "gemma2", "sliding_window": 8}, (8, None) * 3),
        ({"model_type": "gemma3_text", "sliding_window": 8}, (8, 8, 8, 8, 8, None)),
        ({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": False}, (None,) * 6),
        ({"model_type": "qwen2", "sliding_window": 8, "max_window_layers": 4}, (None, None, None, None, 8, 8)),
        (
            {"model_type": "mistral", "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"] * 3},
            (None, 8) * 3,
        ),
    ],
)
def test_each_layer_has_the_window_its_family_gives_it(
    changes: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    assert parse_architecture(LLAMA | changes, "m").windows == windows


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({"first_k_dense_replace": 2}, 4),
        ({"decoder_sparse_step": 2}, 3),
        ({"mlp_only_layers": [0, 5]}, 4),
        ({}, 6),
    ],
)
def test_experts_sit_in_the_layers_that_the_config_names(changes: dict[str, Any], layers: int) -> None:
    experts = {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    model = parse_architecture(LLAMA | experts | changes, "m")
    assert model.experts is not None
    assert model.experts.layers == layers


def test_a_multimodal_model_is_planned_by_its_language_part() -> None:
    values = {"model_type": "gemma3", "dtype": "float32", "text_config": LLAMA | {"model_type": "gemma3_text"}}
    assert parse_architecture(values, "m").hidden == 64
    assert parse_architecture(values, "m").stored_format == "float32"


@pytest.mark.parametrize(
    ("quantisation", "stored"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
    ],
)
def test_a_quantised_checkpoint_says_so(quantisation: dict[str, Any], stored: str) -> None:
    assert parse_architecture(LLAMA | {"quantization_config": quantisation}, "m").stored_format == stored


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(LLAMA | {"model_type": "mamba"}), "model_type 'mamba' is not known to the planner; known: llama"),
        (json.dumps({"model_type": "llama"}), "unusable config: hidden_size: Field required"),
        (json.dumps(LLAMA | {"hidden_size": 0}), "hidden_size: Input should be greater than or equal to 1"),
        (json.dumps(LLAMA | {"model_type": "deepseek_v3", "kv_lora_rank": 8}), "qk_nope_head_dim is missing"),
        ("[]", "must hold a mapping"),
        ("{", "is not valid JSON"),
    ],
)
def test_an_unusable_config_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")) as wrong:
        find_architecture(str(file))
    assert "\n" not in str(wrong.value)


def test_an_unknown_model_is_answered_with_what_is_known() -> None:
    with pytest.raises(ConfigError, match=r"no config for 'gpt-9': give a folder .* llama-3\.1-8b"):
        find_architecture("gpt-9")

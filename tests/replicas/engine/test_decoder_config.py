from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from fleet.errors import ConfigError
from replicas.engine.decoder_config import DecoderConfig, load_config
from replicas.engine.rope import Rotation, frequencies
from tests.tiny_models import SIZES, family_configs

CPU = torch.device("cpu")
LONG = {"original_max_position_embeddings": 64, "rope_theta": 5000.0, "factor": 4.0}
SCALED: dict[str, dict[str, Any]] = {
    "linear": {"rope_theta": 5000.0, "factor": 3.0},
    "llama3": {**LONG, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": LONG,
    "yarn-mscale": {**LONG, "rope_type": "yarn", "mscale": 1.5, "mscale_all_dim": 0.5},
    "yarn-untruncated": {**LONG, "rope_type": "yarn", "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0},
}


def written(folder: Path, keys: dict[str, Any]) -> DecoderConfig:
    (folder / "config.json").write_text(json.dumps(keys))
    return load_config(folder)


def llama(**keys: Any) -> dict[str, Any]:
    return {**SIZES, "model_type": "llama", **keys}


@pytest.mark.parametrize("name", SCALED)
def test_a_scaled_rotation_is_the_one_of_transformers(tmp_path: Path, name: str) -> None:
    parameters = {"rope_type": name, **SCALED[name]}
    theirs = LlamaConfig(**{**SIZES, "head_dim": 32}, rope_parameters=parameters)
    theirs.save_pretrained(tmp_path)
    rope = load_config(tmp_path).layers[0].rope
    expected, temperature = ROPE_INIT_FUNCTIONS[rope.rope_type](theirs, CPU)
    torch.testing.assert_close(frequencies(rope, 32), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(Rotation.of(rope, 32, CPU).temperature.item(), float(temperature))


def test_old_and_new_keys_name_the_same_rotation(tmp_path: Path) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    old = written(tmp_path, llama(rope_theta=7000.0, rope_scaling={"type": "llama3", **scaling}))
    new = written(tmp_path, llama(rope_parameters={"rope_type": "llama3", "rope_theta": 7000.0, **scaling}))
    assert old == new


def test_gemma3_rotates_its_kinds_of_layer_differently_in_old_and_new_keys(tmp_path: Path) -> None:
    sizes = {**SIZES, "model_type": "gemma3_text", "head_dim": 8, "sliding_window": 5, "sliding_window_pattern": 2}
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = written(tmp_path, {**sizes, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": scaling})
    local = {"rope_type": "default", "rope_theta": 1e4}
    parameters = {"sliding_attention": local, "full_attention": {**scaling, "rope_theta": 1e6}}
    new = written(tmp_path, {**sizes, "rope_parameters": parameters})
    assert old == new
    assert [(kind.window, kind.rope.rope_theta) for kind in old.layers] == [(5, 1e4), (None, 1e6)] * 2


@pytest.mark.parametrize("family", sorted(family_configs()))
def test_windows_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    theirs = family_configs()[family]
    theirs.save_pretrained(tmp_path)
    types = getattr(theirs, "layer_types", None)
    window = getattr(theirs, "sliding_window", None)
    expected = [window if types is None or kind == "sliding_attention" else None for kind in types or range(4)]
    assert [kind.window for kind in load_config(tmp_path).layers] == expected


def test_what_a_family_leaves_out_is_what_its_reader_assumes(tmp_path: Path) -> None:
    mistral = written(tmp_path, {**SIZES, "model_type": "mistral"})
    assert {kind.window for kind in mistral.layers} == {4096}
    unbounded = written(tmp_path, {**SIZES, "model_type": "mistral", "sliding_window": None})
    assert {kind.window for kind in unbounded.layers} == {None}
    gemma2 = written(tmp_path, {**SIZES, "model_type": "gemma2"})
    assert (gemma2.attention_softcap, gemma2.logit_softcap, gemma2.tie_word_embeddings) == (50.0, 30.0, True)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "gpt2"}, "architecture 'gpt2' is not supported"),
        (llama(quantization_config={"quant_method": "gptq"}), "holds quantised weights"),
        (llama(rope_scaling={"type": "dynamic", "factor": 2.0}), "'dynamic' is not supported: it depends on the rest"),
        (llama(rope_parameters={"rope_type": "spiral"}), "'spiral' is not supported"),
        (llama(rope_parameters={"partial_rotary_factor": 0.5}), "partial_rotary_factor"),
        (llama(hidden_act="relu"), "activation 'relu' is not supported"),
        (llama(num_key_value_heads=4), "6 heads of width 8 cannot share 4 key-value heads"),
        (llama(hidden_size="wide"), "hidden_size"),
        (llama(layer_types=["mamba"]), "layer_types"),
        ([], "architecture 'None'"),
    ],
)
def test_a_config_that_we_cannot_run_is_refused_in_one_line(tmp_path: Path, keys: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as wrong:
        written(tmp_path, keys)
    assert "\n" not in str(wrong.value)

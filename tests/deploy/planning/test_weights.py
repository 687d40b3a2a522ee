"""Parameter counts against the published totals and against transformers' own modules."""

from __future__ import annotations

import json

import pytest

from deploy.planning.config_file import SHIPPED_MODELS, find_architecture, shipped_names
from deploy.planning.weights import LINEAR_BYTES, active_parameters, count_parameters, weight_bytes
from fleet.errors import ConfigError

BILLION = 10**9


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_model_has_the_published_number_of_parameters(name: str) -> None:
    published = json.loads((SHIPPED_MODELS / f"{name}.json").read_text())["published_parameters"]
    assert count_parameters(find_architecture(name)).total == published


@pytest.mark.parametrize(
    ("name", "billions"), [("deepseek-v3", 37.0), ("mixtral-8x7b", 12.9), ("qwen3-30b-a3b", 3.3), ("llama-3.1-8b", 8.0)]
)
def test_a_mixture_of_experts_multiplies_a_token_with_the_published_share(name: str, billions: float) -> None:
    model = find_architecture(name)
    embedding = 0 if model.has_tied_head else count_parameters(model).embedding
    assert (active_parameters(model) + embedding) / BILLION == pytest.approx(billions, rel=0.03)


def test_quantisation_leaves_embedding_and_head_in_16_bits() -> None:
    model = find_architecture("llama-3.1-8b")
    parameters = count_parameters(model)
    kept = parameters.embedding + parameters.head + parameters.norms
    for number_format, size in LINEAR_BYTES.items():
        expected = (parameters.total - kept) * size + kept * max(2.0, size if size == 4.0 else 2.0)
        assert weight_bytes(model, number_format) == pytest.approx(expected)


def test_deepseek_is_known_to_be_stored_in_fp8() -> None:
    model = find_architecture("deepseek-ai/DeepSeek-V3")
    assert model.stored_format == "fp8"
    assert weight_bytes(model, model.stored_format) / BILLION == pytest.approx(673, rel=0.01)


def test_an_unknown_number_format_is_one_line() -> None:
    with pytest.raises(ConfigError, match="number format 'int3' is not known; known: float32"):
        weight_bytes(find_architecture("llama-3.1-8b"), "int3")


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_names())
def test_transformers_builds_the_same_number_of_parameters(name: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = json.loads((SHIPPED_MODELS / f"{name}.json").read_text())["config"]
    config = AutoConfig.for_model(**(values | {"quantization_config": None, "num_hidden_layers": 4}))
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config)
    tensors = [*module.parameters(), *(b for n, b in module.named_buffers() if n.endswith("e_score_correction_bias"))]
    from deploy.planning.config_file import parse_architecture

    ours = count_parameters(parse_architecture(values | {"num_hidden_layers": 4}, name))
    assert ours.total == sum(tensor.numel() for tensor in tensors)

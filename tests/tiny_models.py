"""Tiny random models of every supported family, on disk as a user would have them."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from tests.tiny import VOCABULARY, tiny_tokenizer_folder

SIZES = {
    "vocab_size": VOCABULARY + 16,  # padded, as real models are
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    # Wide enough that the most likely tokens differ by far more than float32 rounds.
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SLIDING = {"sliding_window": 5}


def family_configs() -> dict[str, PreTrainedConfig]:
    """One config per family and per kind of attention."""
    mixed = ["sliding_attention", "full_attention"] * 2
    return {
        "llama": LlamaConfig(**SIZES),
        "qwen2": Qwen2Config(**SIZES),
        "qwen2-sliding": Qwen2Config(**SIZES, **SLIDING, use_sliding_window=True, max_window_layers=1),
        "qwen3": Qwen3Config(**SIZES, head_dim=8),
        "mistral": MistralConfig(**SIZES, **SLIDING, head_dim=8),
        "gemma2": Gemma2Config(**SIZES, **SLIDING, head_dim=8, query_pre_attn_scalar=24),
        "gemma3": Gemma3TextConfig(
            **SIZES, **SLIDING, head_dim=8, query_pre_attn_scalar=24, final_logit_softcapping=5.0, layer_types=mixed
        ),
    }


def tiny_model_folder(
    folder: Path, config: PreTrainedConfig | None = None, *, seed: int = 0, is_varied: bool = False
) -> Path:
    """Write a random model and the tiny tokenizer into `folder` and return it.

    Norms are 1 and biases 0, as transformers leaves them, unless the model `is_varied`.
    """
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config or LlamaConfig(**SIZES))
    if is_varied:
        _vary(model)
    model.save_pretrained(folder)
    return tiny_tokenizer_folder(folder)


@torch.no_grad()
def _vary(model: PreTrainedModel) -> None:
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.add_(torch.randn_like(weight) * 0.3)

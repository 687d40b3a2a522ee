"""Heads in the published layouts, tiny and empty: names, shapes and configs are all that a check reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

HIDDEN, WIDTH, HEADS, KV, HEAD_DIM, VOCABULARY, DRAFTED, LAYERS = 32, 48, 4, 2, 8, 400, 100, 8
Shapes = dict[str, tuple[int, ...]]

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "num_hidden_layers": 1,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
}
TARGET: dict[str, Any] = CONFIG | {"num_hidden_layers": LAYERS, "max_position_embeddings": 512, "model_type": "llama"}


def _layer(prefix: str, attended: int) -> Shapes:
    return {
        f"{prefix}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, attended),
        f"{prefix}.self_attn.k_proj.weight": (KV * HEAD_DIM, attended),
        f"{prefix}.self_attn.v_proj.weight": (KV * HEAD_DIM, attended),
        f"{prefix}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        f"{prefix}.mlp.gate_proj.weight": (WIDTH, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": (WIDTH, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": (HIDDEN, WIDTH),
        f"{prefix}.post_attention_layernorm.weight": (HIDDEN,),
    }


def eagle() -> Shapes:
    return {
        "embed_tokens.weight": (VOCABULARY, HIDDEN),
        "fc.weight": (HIDDEN, 2 * HIDDEN),
        "fc.bias": (HIDDEN,),
    } | _layer("layers.0", HIDDEN)


def eagle_cut() -> Shapes:
    """As `fleet train eagle` writes it: with a part of the target's vocabulary, without its embedding."""
    return {name: shape for name, shape in eagle().items() if name != "embed_tokens.weight"} | {"d2t": (DRAFTED,)}


def eagle3(prefix: str = "midlayer") -> Shapes:
    return {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        f"{prefix}.input_layernorm.weight": (HIDDEN,),
        f"{prefix}.hidden_norm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (DRAFTED, HIDDEN),
        "d2t": (DRAFTED,),
        "t2d": (VOCABULARY,),
    } | _layer(prefix, 2 * HIDDEN)


EAGLE3_CONFIG: dict[str, Any] = CONFIG | {"draft_vocab_size": DRAFTED}
EAGLE_CONFIG: dict[str, Any] = {
    "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "parallel_draft_heads_num_layers": 1,
}
"""The section as NVIDIA's exporter writes it."""
SPECULATORS_CONFIG: dict[str, Any] = {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "draft_vocab_size": DRAFTED,
    "target_hidden_size": None,
    "transformer_layer_config": CONFIG,
    "speculators_config": {"verifier": {"name_or_path": "someone/the-target", "architectures": ["LlamaForCausalLM"]}},
}


def medusa(heads: int = 5) -> Shapes:
    shapes: Shapes = {}
    for head in range(heads):
        shapes |= {
            f"{head}.0.linear.weight": (HIDDEN, HIDDEN),
            f"{head}.0.linear.bias": (HIDDEN,),
            f"{head}.1.weight": (VOCABULARY, HIDDEN),
        }
    return shapes


MEDUSA_CONFIG: dict[str, Any] = {
    "medusa_num_heads": 2,  # as in the published file, which has five
    "medusa_num_layers": 1,
    "base_model_name_or_path": "someone/the-target",
}


def converted_medusa(heads: int = 3) -> Shapes:
    blocks = {f"blocks.{head}.layers.0.weight": (HIDDEN, HIDDEN) for head in range(heads)}
    return blocks | {f"lm_heads.{head}.weight": (DRAFTED, HIDDEN) for head in range(heads)} | {"token_map": (DRAFTED,)}


def write_head(folder: Path, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: np.zeros(shape, np.float16) for name, shape in shapes.items()}, folder / "model.safetensors")
    return folder

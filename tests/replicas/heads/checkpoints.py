"""Heads at small size with exactly the keys, shapes and configs of published ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

VOCABULARY = 60
HIDDEN = 16
LAYERS = 8
"""Of the target: fewer than 8 make EAGLE-3's three taps fall together."""
DRAFT_IDS = (3, 4, 7, 9, 12, 20, 21, 33, 40, 41, 42, 59)


@dataclass
class Files:
    """A head's folder to be; `change` and `drop` make the variants and the broken ones."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    file: str = "model.safetensors"
    dropped: list[str] = field(default_factory=list)

    def change(self, **config: Any) -> Files:
        self.config.update(config)
        return self

    def drop(self, *names: str) -> Files:
        for name in names:
            self.config.pop(name, None)
            self.tensors.pop(name, None)
        return self

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        if self.file.endswith(".safetensors"):
            save_file(self.tensors, folder / self.file)
        else:
            torch.save(self.tensors, folder / self.file)
        return folder


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (1 + 0.3 * torch.randn(shape, generator=generator))
        if "norm" in name
        else 0.35 * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }


def llama_config(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128,
        "hidden_act": "silu",
        **changes,
    }


def layer_shapes(prefix: str, inputs: int, *, kv_heads: int = 2, head_dim: int = 4) -> dict[str, tuple[int, ...]]:
    queries, keys = 4 * head_dim, kv_heads * head_dim
    return {
        f"{prefix}.self_attn.q_proj.weight": (queries, inputs),
        f"{prefix}.self_attn.k_proj.weight": (keys, inputs),
        f"{prefix}.self_attn.v_proj.weight": (keys, inputs),
        f"{prefix}.self_attn.o_proj.weight": (HIDDEN, queries),
        f"{prefix}.mlp.gate_proj.weight": (24, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": (24, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": (HIDDEN, 24),
        f"{prefix}.post_attention_layernorm.weight": (HIDDEN,),
    }


def eagle(*, kv_heads: int = 2, head_dim: int = 4, **config: Any) -> Files:
    """As `yuhuili/EAGLE-LLaMA3-Instruct-8B`: no bias, pickled."""
    shapes = {
        "embed_tokens.weight": (VOCABULARY, HIDDEN),
        "fc.weight": (HIDDEN, 2 * HIDDEN),
        **layer_shapes("layers.0", HIDDEN, kv_heads=kv_heads, head_dim=head_dim),
    }
    changes = {"bias": False, "num_key_value_heads": kv_heads, **config}
    return Files(llama_config(**changes), random_tensors(shapes), "pytorch_model.bin")


def eagle_vicuna() -> Files:
    """As `yuhuili/EAGLE-Vicuna-7B-v1.3`: no `bias` key means a bias, no KV head count means multi-head."""
    files = eagle(kv_heads=4).drop("bias", "num_key_value_heads")
    files.tensors["fc.bias"] = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(9))
    return files


def eagle_qwen2() -> Files:
    """As `yuhuili/EAGLE-Qwen2-7B-Instruct`: biases on queries, keys and values."""
    files = eagle_vicuna().change(qkv_bias=True)
    shapes = {f"layers.0.self_attn.{name}_proj.bias": (16,) for name in "qkv"}
    files.tensors.update(random_tensors(shapes, seed=3))
    return files


def eagle_cut(*, draft_ids: tuple[int, ...] = DRAFT_IDS) -> Files:
    """As `fleet train eagle` writes it: tokens that it can draft, and nothing of the target's."""
    files = eagle(draft_vocab_size=len(draft_ids)).drop("embed_tokens.weight")
    files.tensors["d2t"] = torch.tensor(draft_ids, dtype=torch.int64) - torch.arange(len(draft_ids))
    files.file = "model.safetensors"
    return files


def eagle3(*, draft_ids: tuple[int, ...] = DRAFT_IDS, prefix: str = "midlayer", **config: Any) -> Files:
    """As `yuhuili/EAGLE3-LLaMA3.1-Instruct-8B`: cut vocabulary, no embedding, default taps."""
    size = len(draft_ids)
    shapes = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        f"{prefix}.hidden_norm.weight": (HIDDEN,),
        f"{prefix}.input_layernorm.weight": (HIDDEN,),
        **layer_shapes(prefix, 2 * HIDDEN),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (size, HIDDEN),
    }
    tensors = random_tensors(shapes)
    if size < VOCABULARY:
        tensors["d2t"] = torch.tensor(draft_ids) - torch.arange(size)
        tensors["t2d"] = torch.isin(torch.arange(VOCABULARY), torch.tensor(draft_ids))
    changes = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": size, **config}
    return Files(llama_config(**changes), tensors, "pytorch_model.bin")


def speculators(**config: Any) -> Files:
    """As the speculators library writes it: `layers.0.*`, the layer's config nested, an embedding of its own."""
    files = eagle3(prefix="layers.0")
    nested = llama_config(rope_parameters={"rope_theta": 5000.0, "rope_type": "default"})
    files.tensors["embed_tokens.weight"] = random_tensors({"e": (VOCABULARY, HIDDEN)}, seed=4)["e"]
    files.file = "model.safetensors"
    files.config = {
        "architectures": ["Eagle3DraftModel"],
        "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": len(DRAFT_IDS),
        "norm_before_residual": True,
        "norm_before_fc": False,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": None,
        "transformer_layer_config": nested,
        **config,
    }
    return files


def normed_once(files: Files) -> Files:
    files.tensors["input_norm.weight"] = random_tensors({"norm": (3 * HIDDEN,)}, seed=5)["norm"]
    return files.change(norm_before_fc=True, norm_output=True)


def normed_each(files: Files) -> Files:
    for part in range(3):
        files.tensors[f"fc_norm.{part}.weight"] = random_tensors({"norm": (HIDDEN,)}, seed=6 + part)["norm"]
    return files.change(fc_norm=True)


def sliding(files: Files) -> Files:
    files.config["transformer_layer_config"].update(layer_types=["sliding_attention"], sliding_window=4)
    return files


def sizes_apart() -> Files:
    return eagle(head_dim=6).change(head_dim=6)


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

EAGLES: dict[str, Callable[[], Files]] = {
    "llama3": eagle,
    "vicuna": eagle_vicuna,
    "qwen2": eagle_qwen2,
    "own-head-dim": sizes_apart,
    "no-bias-named-or-stored": lambda: eagle().drop("bias"),
    "theta": lambda: eagle(rope_theta=300.0),
    "targets-embedding": lambda: eagle().drop("embed_tokens.weight"),
    "cut": eagle_cut,
    "cut-to-unsorted-of-unsaid-number": lambda: eagle_cut(draft_ids=DRAFT_IDS[::-1]).drop("draft_vocab_size"),
}
EAGLE3S: dict[str, Callable[[], Files]] = {
    "published": eagle3,
    "every-token": lambda: eagle3(draft_ids=tuple(range(VOCABULARY))),
    "own-taps": lambda: eagle3(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 4, 6]}),
    "llama3-rope": lambda: eagle3(rope_theta=500.0, rope_scaling=LLAMA3_ROPE),
    "speculators": speculators,
    "residual-not-normed": lambda: speculators(norm_before_residual=False),
    "normed-features": lambda: normed_once(speculators()),
    "normed-parts": lambda: normed_each(speculators()),
    "sliding": lambda: sliding(speculators()),
}


def medusa(*, heads: int = 3, blocks: int = 1) -> Files:
    """As `FasterDecoding/medusa-vicuna-7b-v1.3`: its config names two heads, whatever the file holds."""
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        for block in range(blocks):
            shapes |= {f"{head}.{block}.linear.weight": (HIDDEN, HIDDEN), f"{head}.{block}.linear.bias": (HIDDEN,)}
        shapes[f"{head}.{blocks}.weight"] = (VOCABULARY, HIDDEN)
    config = {"medusa_num_heads": 2, "medusa_num_layers": blocks, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}
    return Files(config, random_tensors(shapes), "medusa_lm_head.pt")


def medusa_converted(*, rows: int = VOCABULARY, token_map: tuple[int, ...] = (), shared: bool = False) -> Files:
    """As `abhigoyal/vllm-medusa-vicuna-7b-v1.3`, with blocks that have a bias or none."""
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(3):
        shapes |= {f"blocks.{head}.layers.0.weight": (HIDDEN, HIDDEN)}
        if head == 0 or not shared:
            shapes[f"lm_heads.{head}.weight"] = (rows, HIDDEN)
    tensors = random_tensors(shapes)
    if token_map:
        tensors["token_map"] = torch.tensor(token_map)
    config = {
        "model_type": "medusa",
        "hidden_size": HIDDEN,
        "vocab_size": VOCABULARY,
        "num_heads": 3,
        "num_hidden_layers": 1,
        "truncated_vocab_size": len(token_map) or None,
        "medusa_fc_bias": False,
        "original_lm_head": shared,
    }
    return Files(config, tensors)

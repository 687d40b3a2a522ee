"""What does a config.json say about a model's shape? Read from that file alone: no weights, no model code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from deploy.planning.architecture import Architecture, Experts, Extras, LatentAttention
from fleet.config import explain
from fleet.errors import ConfigError

SHIPPED_MODELS = Path(__file__).parent / "models"
FULL_ATTENTION = "full_attention"
Count = Annotated[int, Field(ge=1)]

FAMILIES: Mapping[str, Extras] = {
    "llama": Extras(),
    "mistral": Extras(),
    "mixtral": Extras(),
    "qwen2": Extras(has_qkv_bias=True),
    "qwen3": Extras(has_qk_norm=True),
    "qwen3_moe": Extras(has_qk_norm=True),
    "gemma2": Extras(norms_per_layer=4),
    "gemma3_text": Extras(has_qk_norm=True, norms_per_layer=4),
    "deepseek_v3": Extras(),
}

# What published files leave out because the family's own code has it as default.
OMITTED: Mapping[str, Mapping[str, object]] = {
    "gemma2": {"sliding_window_pattern": 2, "tie_word_embeddings": True},
    "gemma3_text": {
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
    },
}


class QuantizationConfig(BaseModel):
    """How a checkpoint says that its weights are quantised."""

    model_config = ConfigDict(frozen=True)

    quant_method: str
    bits: int | None = None


class ConfigFile(BaseModel):
    """The keys of a config.json that decide memory and time; all others are ignored."""

    model_config = ConfigDict(frozen=True)

    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    intermediate_size: Count
    vocab_size: Count
    max_position_embeddings: Count
    tie_word_embeddings: bool = False
    dtype: str | None = Field(None, validation_alias=AliasChoices("dtype", "torch_dtype"))
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: Count | None = None
    use_sliding_window: bool = True
    max_window_layers: int | None = None
    sliding_window_pattern: Count = 1
    layer_types: tuple[str, ...] | None = None
    q_lora_rank: Count | None = None
    kv_lora_rank: Count | None = None
    qk_nope_head_dim: Count | None = None
    qk_rope_head_dim: Count | None = None
    v_head_dim: Count | None = None
    expert_count: Count | None = Field(
        None, validation_alias=AliasChoices("n_routed_experts", "num_experts", "num_local_experts")
    )
    num_experts_per_tok: Count | None = None
    moe_intermediate_size: Count | None = None
    n_shared_experts: int | None = None
    first_k_dense_replace: int = 0
    decoder_sparse_step: Count = 1
    mlp_only_layers: tuple[int, ...] = ()
    quantization_config: QuantizationConfig | None = None


def find_architecture(model: str) -> Architecture:
    """The architecture of a local folder, a config.json, or a shipped model by (hub) name.

    Raises ConfigError where there is no such config or its family is not known.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return parse_architecture(_load(path), path.parent.name or model)
    shipped = _shipped(model)
    if shipped is None:
        raise ConfigError(
            f"no config for '{model}': give a folder or a config.json, or one of {', '.join(shipped_names())}"
        )
    return parse_architecture(_load(shipped)["config"], shipped.stem)


def shipped_names() -> list[str]:
    """Models whose config facts come with the package."""
    return sorted(path.stem for path in SHIPPED_MODELS.glob("*.json"))


def parse_architecture(values: Mapping[str, Any], name: str) -> Architecture:
    """A config.json's content as an `Architecture`; a multimodal model's language part. Raises ConfigError."""
    if "text_config" in values:
        inherited = {key: values[key] for key in ("quantization_config", "dtype", "torch_dtype") if key in values}
        values = inherited | dict(values["text_config"])
    family = str(values.get("model_type", "none"))
    if family not in FAMILIES:
        raise ConfigError(f"{name}: model_type '{family}' is not known to the planner; known: {', '.join(FAMILIES)}")
    try:
        config = ConfigFile.model_validate(dict(OMITTED.get(family, {})) | dict(values))
    except ValidationError as error:
        raise ConfigError(f"{name}: unusable config: {explain(error)}") from error
    return replace(_architecture(config, family, name), values=values)


def _architecture(config: ConfigFile, family: str, name: str) -> Architecture:
    extras = FAMILIES[family]
    if config.attention_bias or config.mlp_bias:
        extras = replace(
            extras,
            has_qkv_bias=extras.has_qkv_bias or config.attention_bias,
            has_output_bias=config.attention_bias,
            has_mlp_bias=config.mlp_bias,
        )
    return Architecture(
        name=name,
        family=family,
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=config.head_dim or config.hidden_size // config.num_attention_heads,
        width=config.intermediate_size,
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
        has_tied_head=config.tie_word_embeddings,
        windows=_windows(config, family),
        stored_format=_stored_format(config),
        extras=extras,
        latent=_latent(config, name) if config.kv_lora_rank else None,
        experts=_experts(config, family, name) if config.expert_count else None,
    )


def _windows(config: ConfigFile, family: str) -> tuple[int | None, ...]:
    """Each layer's window: as `layer_types` says, else by the family's rule."""
    layers = range(config.num_hidden_layers)
    window = config.sliding_window
    if window is None or (family.startswith("qwen") and not config.use_sliding_window):
        return (None,) * len(layers)
    if config.layer_types is not None:
        return tuple(None if kind == FULL_ATTENTION else window for kind in config.layer_types)
    if family.startswith("qwen"):
        first = config.max_window_layers or 0
        return tuple(window if layer >= first else None for layer in layers)
    pattern = config.sliding_window_pattern
    return tuple(window if pattern == 1 or (layer + 1) % pattern else None for layer in layers)


def _latent(config: ConfigFile, name: str) -> LatentAttention:
    return LatentAttention(
        query_rank=config.q_lora_rank,
        kv_rank=_needed(config.kv_lora_rank, "kv_lora_rank", name),
        nope_dim=_needed(config.qk_nope_head_dim, "qk_nope_head_dim", name),
        rope_dim=_needed(config.qk_rope_head_dim, "qk_rope_head_dim", name),
        value_dim=_needed(config.v_head_dim, "v_head_dim", name),
    )


def _experts(config: ConfigFile, family: str, name: str) -> Experts:
    width = config.moe_intermediate_size or config.intermediate_size
    return Experts(
        count=_needed(config.expert_count, "number of experts", name),
        per_token=_needed(config.num_experts_per_tok, "num_experts_per_tok", name),
        width=width,
        shared_width=width * (config.n_shared_experts or 0),
        layers=_expert_layers(config),
        has_bias_term=family == "deepseek_v3",
    )


def _expert_layers(config: ConfigFile) -> int:
    step, dense = config.decoder_sparse_step, set(config.mlp_only_layers)
    layers: Sequence[int] = range(config.first_k_dense_replace, config.num_hidden_layers)
    return sum(1 for layer in layers if layer not in dense and (layer + 1) % step == 0)


def _stored_format(config: ConfigFile) -> str:
    quantized = config.quantization_config
    if quantized is None:
        return config.dtype or "bfloat16"
    if quantized.quant_method in ("fp8", "fbgemm_fp8"):
        return "fp8"
    return "int4" if quantized.bits in (None, 4) else f"int{quantized.bits}"


def _needed(value: int | None, key: str, name: str) -> int:
    if value is None:
        raise ConfigError(f"{name}: unusable config: {key} is missing")
    return value


def _shipped(model: str) -> Path | None:
    """The shipped file for a hub id or a short name; the tuned variants have the shape of their base."""
    name = model.rsplit("/", 1)[-1].lower()
    for suffix in ("-instruct-v0.1", "-instruct", "-v0.1", "-it", "-base"):
        name = name.removesuffix(suffix)
    name = name.removeprefix("meta-")
    return next((path for path in SHIPPED_MODELS.glob("*.json") if path.stem == name), None)


def _load(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a mapping")
    return value

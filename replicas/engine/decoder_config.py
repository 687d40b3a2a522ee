"""What does a model's config.json say about its shape, and can we run it? Read by us, and without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fleet.config import explain
from fleet.errors import ConfigError

SUPPORTED_FAMILIES = ("gemma2", "gemma3_text", "llama", "mistral", "qwen2", "qwen3")
GEMMA = ("gemma2", "gemma3_text")
QWEN = ("qwen2", "qwen3")
# These change a token's rotation with the longest position in the batch: neighbours would change the answer.
UNSTABLE_ROPE = ("dynamic", "longrope")
STABLE_ROPE = ("default", "linear", "llama3", "yarn")
ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
SHARES_EMBEDDING = "shares_target_embedding"
SLIDING, FULL = "sliding_attention", "full_attention"

_GEMMA_DEFAULTS = {
    "head_dim": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
}
# What a family's own reader assumes where its config.json leaves a key out; a null is no omission.
FAMILY_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {**_GEMMA_DEFAULTS, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {**_GEMMA_DEFAULTS, "rope_theta": 1_000_000.0},
    "mistral": {"sliding_window": 4096},
    "qwen2": {"sliding_window": 4096},
    "qwen3": {"sliding_window": 4096, "head_dim": 128},
}

Size = Annotated[int, Field(ge=1)]


class Rope(BaseModel):
    """How positions rotate queries and keys, in config.json's own words; the formulas are in `rope.py`."""

    model_config = ConfigDict(frozen=True)

    rope_type: str = "default"
    rope_theta: float = Field(gt=0)
    factor: float = Field(default=1.0, gt=0)
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: Size
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    partial_rotary_factor: float = Field(default=1.0, ge=1.0, le=1.0)


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What differs from layer to layer."""

    window: int | None
    """A token sees so many tokens, itself included; None: all before it."""
    rope: Rope


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """All that the forward pass of a supported family depends on, beside its weights."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    activation: str
    tie_word_embeddings: bool
    layers: tuple[LayerKind, ...]
    attention_scale: float
    """Scores are multiplied by it."""
    attention_softcap: float | None
    logit_softcap: float | None
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layers)

    @property
    def is_gemma(self) -> bool:
        """Norms scale by 1 + weight, two more of them follow attention and MLP, and embeddings scale by √hidden."""
        return self.model_type in GEMMA

    @property
    def has_qk_norm(self) -> bool:
        """Each head's queries and keys are normed before they are rotated."""
        return self.model_type in ("qwen3", "gemma3_text")


class _Document(BaseModel):
    """The keys of config.json that we read, of all families together."""

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    max_position_embeddings: Size
    rms_norm_eps: float = 1e-6
    hidden_act: str | None = "silu"
    hidden_activation: str | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    use_bidirectional_attention: Literal[False] | None = None
    sliding_window: Size | None = None
    use_sliding_window: bool = False
    max_window_layers: int = 28
    sliding_window_pattern: Size = 6
    layer_types: list[Literal["sliding_attention", "full_attention"]] | None = None
    query_pre_attn_scalar: float = Field(default=256.0, gt=0)
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    rope_theta: float = 10_000.0
    rope_local_base_freq: float = 10_000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None


def shares_embedding(folder: Path) -> bool:
    """Whether a draft was trained to use its target's embedding, head and tokenizer, and so stores none of them."""
    try:
        return json.loads((folder / "config.json").read_bytes()).get(SHARES_EMBEDDING) is True
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{folder} holds no usable model config: {error}") from error


def load_config(folder: Path, *, layers: int | None = None) -> DecoderConfig:
    """The model's config, cut to its first `layers`; ConfigError in one line where we cannot run it."""
    try:
        raw = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} holds no usable model config: {error}") from error
    return parse_config(raw, str(folder), layers=layers)


def parse_config(raw: Any, name: str, *, layers: int | None = None) -> DecoderConfig:
    """A config.json's content, cut to the first `layers`; ConfigError where we cannot run what `name` stands for."""
    family = raw.get("model_type") if isinstance(raw, dict) else None
    if family not in SUPPORTED_FAMILIES:
        raise ConfigError(f"architecture '{family}' is not supported (supported: {', '.join(SUPPORTED_FAMILIES)})")
    if raw.get("quantization_config") is not None:
        raise ConfigError(f"{name} holds quantised weights; use a checkpoint in bfloat16, float16 or float32")
    try:
        config = _decoder_config(family, _Document.model_validate({**FAMILY_DEFAULTS.get(family, {}), **raw}), layers)
    except ValidationError as error:
        raise ConfigError(f"{name} holds no usable model config: {explain(error)}") from error
    if config.num_attention_heads % config.num_key_value_heads or config.head_dim % 2:
        raise ConfigError(
            f"{name}: {config.num_attention_heads} heads of width {config.head_dim} cannot share "
            f"{config.num_key_value_heads} key-value heads"
        )
    if config.activation not in ACTIVATIONS:
        raise ConfigError(f"activation '{config.activation}' is not supported (supported: {', '.join(ACTIVATIONS)})")
    return config


def context_length(config: DecoderConfig, max_model_len: int | None) -> int:
    """The longest prompt and answer together; ConfigError where more is asked for than the model can."""
    context = config.max_position_embeddings
    if max_model_len is not None and max_model_len > context:
        raise ConfigError(f"max_model_len {max_model_len} exceeds the model's context of {context}")
    return max_model_len or context


def _decoder_config(family: str, document: _Document, layers: int | None) -> DecoderConfig:
    head_dim = document.head_dim or document.hidden_size // document.num_attention_heads
    scale = document.query_pre_attn_scalar if family in GEMMA else head_dim
    return DecoderConfig(
        model_type=family,
        vocab_size=document.vocab_size,
        hidden_size=document.hidden_size,
        intermediate_size=document.intermediate_size,
        num_attention_heads=document.num_attention_heads,
        num_key_value_heads=document.num_key_value_heads or document.num_attention_heads,
        head_dim=head_dim,
        max_position_embeddings=document.max_position_embeddings,
        rms_norm_eps=document.rms_norm_eps,
        activation=document.hidden_activation or document.hidden_act or "silu",
        tie_word_embeddings=document.tie_word_embeddings,
        layers=_layers(family, document, layers),
        attention_scale=scale**-0.5,
        attention_softcap=document.attn_logit_softcapping if family == "gemma2" else None,
        logit_softcap=document.final_logit_softcapping if family in GEMMA else None,
        has_qkv_bias=family == "qwen2" or (family != "mistral" and document.attention_bias),
        has_output_bias=family not in ("mistral", "qwen2") and document.attention_bias,
        has_mlp_bias=family == "llama" and document.mlp_bias,
    )


def _layers(family: str, document: _Document, wanted: int | None) -> tuple[LayerKind, ...]:
    types = _layer_types(family, document)
    if wanted is not None and wanted > len(types):
        raise ConfigError(f"layers {wanted} exceeds the model's {len(types)}")
    is_windowed = family != "llama" and (family not in QWEN or document.use_sliding_window)
    window = document.sliding_window if is_windowed else None
    kinds = {
        SLIDING: LayerKind(window, _rope(family, document, SLIDING)),
        FULL: LayerKind(None, _rope(family, document, FULL)),
    }
    return tuple(kinds[kind] for kind in types[:wanted])


def _layer_types(family: str, document: _Document) -> list[str]:
    count = document.num_hidden_layers
    if family == "llama":
        return [FULL] * count
    if family == "mistral":
        return [SLIDING] * count
    if document.layer_types is not None:
        return [*document.layer_types]
    if family in QWEN:
        return [SLIDING if index >= document.max_window_layers else FULL for index in range(count)]
    every = 2 if family == "gemma2" else document.sliding_window_pattern
    return [SLIDING if (index + 1) % every else FULL for index in range(count)]


def _rope(family: str, document: _Document, layer_type: str) -> Rope:
    """The rotation of one kind of layer: `rope_parameters` (one for all, or one per kind), or the older keys."""
    is_local = family == "gemma3_text" and layer_type == SLIDING
    named = document.rope_parameters or {}
    if document.rope_parameters is None and not is_local:
        named = document.rope_scaling or {}
    if any(isinstance(value, dict) for value in named.values()):
        named = named.get(layer_type) or {}
    given = {key: value for key, value in named.items() if value is not None}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind in UNSTABLE_ROPE:
        raise ConfigError(f"rotary embedding '{kind}' is not supported: it depends on the rest of the batch")
    if kind not in STABLE_ROPE:
        raise ConfigError(f"rotary embedding '{kind}' is not supported (supported: {', '.join(STABLE_ROPE)})")
    return Rope.model_validate(
        {
            "rope_theta": document.rope_local_base_freq if is_local else document.rope_theta,
            "original_max_position_embeddings": document.max_position_embeddings,
            **given,
            "rope_type": kind,
        }
    )

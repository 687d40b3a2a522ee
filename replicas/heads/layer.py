"""The one decoder layer of an EAGLE head, run over rows of many sequences at once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor
from torch.nn import functional

from fleet.config import explain
from fleet.errors import ConfigError
from replicas.engine.rope import Rotation, pair_channels, rotate
from replicas.heads.cache import CachedRows
from replicas.heads.checkpoint import Checkpoint
from replicas.heads.rotary import rope_from


class LayerConfig(BaseModel):
    """What a Llama config says about the layer; other keys do not concern it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int | None = Field(None, ge=1, description="Absent means multi-head.")
    head_dim: int | None = Field(None, ge=2)
    num_hidden_layers: int = Field(1, ge=1)
    vocab_size: int = Field(ge=1)
    rms_norm_eps: float = Field(1e-6, gt=0)
    max_position_embeddings: int = Field(2048, ge=1)
    hidden_act: str = "silu"
    sliding_window: int | None = Field(None, ge=1)
    layer_types: tuple[str, ...] | None = None

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_width(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def window(self) -> int | None:
        """Positions that a token sees, itself included; None for all."""
        is_sliding = self.layer_types is not None and self.layer_types[0] == "sliding_attention"
        return self.sliding_window if is_sliding else None


def layer_config(name: str, config: Mapping[str, Any]) -> LayerConfig:
    """Check a head's config; ConfigError in one line where a key is missing, wrong or beyond this project."""
    try:
        found = LayerConfig.model_validate(config)
    except ValidationError as error:
        raise ConfigError(f"{name}/config.json: {explain(error)}") from error
    if found.num_hidden_layers != 1:
        raise ConfigError(f"{name} has {found.num_hidden_layers} draft layers; heads of one layer are supported")
    if found.hidden_act != "silu":
        raise ConfigError(f"{name}: the activation '{found.hidden_act}' is not supported (supported: silu)")
    if found.num_attention_heads % found.kv_heads:
        raise ConfigError(f"{name}: {found.num_attention_heads} heads cannot share {found.kv_heads} KV heads")
    return found


class DraftLayer:
    """Attention and gated MLP of a Llama layer, whose attention may read rows of another width than the residual."""

    def __init__(self, checkpoint: Checkpoint, prefix: str, config: LayerConfig, input_width: int) -> None:
        """Takes the tensors `{prefix}.self_attn.*`, `{prefix}.mlp.*` and `{prefix}.post_attention_layernorm`."""
        hidden, inner, width = config.hidden_size, config.intermediate_size, config.head_width
        queries, keys = config.num_attention_heads * width, config.kv_heads * width
        self._heads, self._kv_heads, self._width = config.num_attention_heads, config.kv_heads, width
        own = checkpoint.config.get("transformer_layer_config") or checkpoint.config
        rope = rope_from(checkpoint.name, own, config.max_position_embeddings)
        self._norm = checkpoint.norm(f"{prefix}.post_attention_layernorm", hidden, config.rms_norm_eps)
        self._rotation = Rotation.of(rope, width, self._norm.weight.device)
        pairs = partial(pair_channels, head_dim=width)
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        self._queries = checkpoint.linear(f"{attention}.q_proj", queries, input_width, pairs)
        self._keys = checkpoint.linear(f"{attention}.k_proj", keys, input_width, pairs)
        self._values = checkpoint.linear(f"{attention}.v_proj", keys, input_width)
        self._output = checkpoint.linear(f"{attention}.o_proj", hidden, queries)
        self._gate = checkpoint.linear(f"{mlp}.gate_proj", inner, hidden)
        self._up = checkpoint.linear(f"{mlp}.up_proj", inner, hidden)
        self._down = checkpoint.linear(f"{mlp}.down_proj", hidden, inner)

    def __call__(self, inputs: Tensor, residual: Tensor, rows: CachedRows) -> Tensor:
        """Inputs [n, input_width] and residual [n, hidden] to [n, hidden]; keys and values go into the cache."""
        rotation = self._rotation.at(rows.positions)
        queries = self._queries(inputs).view(-1, self._heads, self._width)
        keys = self._keys(inputs).view(-1, self._kv_heads, self._width)
        values = self._values(inputs).view(-1, self._kv_heads, self._width)
        rotate(queries, rotation)
        rotate(keys, rotation)
        residual = residual + self._output(rows.attend(queries, keys, values))
        normed = self._norm(residual)
        return residual + self._down(functional.silu(self._gate(normed)).mul_(self._up(normed)))

"""How many parameters does a model have, and how many bytes in which number format?"""

from __future__ import annotations

from dataclasses import dataclass

from deploy.planning.architecture import Architecture, Experts, LatentAttention
from fleet.errors import ConfigError

# Bytes per weight of linear layers, scales included: fp8 in blocks of 128 × 128 with a float32 scale,
# int8 with one float16 scale per row (negligible), int4 in groups of 128 with a float16 scale and a 4-bit zero point.
LINEAR_BYTES = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0 + 4 / (128 * 128),
    "int8": 1.0,
    "int4": 0.5 + 2.5 / 128,
}
QUANTISED = ("fp8", "int8", "int4")
PLAIN_BYTES = 2.0
"""Embedding, head and norms of a quantised checkpoint stay in 16 bits."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of parameters by part."""

    embedding: int
    head: int
    """0 where the head is the embedding."""
    attention: int
    dense: int
    """Dense feed-forward layers, gates of the experts and the experts that every token passes."""
    experts: int
    """All routed experts."""
    norms: int

    @property
    def total(self) -> int:
        return self.embedding + self.head + self.attention + self.dense + self.experts + self.norms


def count_parameters(model: Architecture) -> Parameters:
    """Parameters of every part; equal to the published totals, which the tests hold them to."""
    extras = model.extras
    attention, attention_norms = _attention(model)
    dense_layers = model.layers - (model.experts.layers if model.experts else 0)
    dense = dense_layers * _feed_forward(model.hidden, model.width, has_bias=extras.has_mlp_bias)
    routed = 0
    if model.experts is not None:
        gate = model.experts.count * (model.hidden + int(model.experts.has_bias_term))
        shared = _feed_forward(model.hidden, model.experts.shared_width)
        dense += model.experts.layers * (gate + shared)
        routed = model.experts.layers * model.experts.count * _feed_forward(model.hidden, model.experts.width)
    return Parameters(
        embedding=model.vocabulary * model.hidden,
        head=0 if model.has_tied_head else model.vocabulary * model.hidden,
        attention=model.layers * attention,
        dense=dense,
        experts=routed,
        norms=model.layers * (extras.norms_per_layer * model.hidden + attention_norms) + model.hidden,
    )


def active_parameters(model: Architecture) -> int:
    """Parameters that one token is multiplied with: the head, but of the experts only its own."""
    parameters = count_parameters(model)
    head = parameters.head or parameters.embedding
    return head + parameters.attention + parameters.dense + round(parameters.experts * expert_share(model.experts))


def expert_share(experts: Experts | None) -> float:
    """The share of routed experts that one token meets."""
    return experts.per_token / experts.count if experts else 0.0


def linear_bytes(parameters: int, number_format: str) -> float:
    """Bytes of linear layers' weights. Raises ConfigError for a format we do not know."""
    if number_format not in LINEAR_BYTES:
        raise ConfigError(f"number format '{number_format}' is not known; known: {', '.join(LINEAR_BYTES)}")
    return parameters * LINEAR_BYTES[number_format]


def plain_bytes(parameters: int, number_format: str) -> float:
    """Bytes of what stays unquantised: embedding, head, norms."""
    return parameters * PLAIN_BYTES if number_format in QUANTISED else linear_bytes(parameters, number_format)


def weight_bytes(model: Architecture, number_format: str) -> float:
    """Bytes of all weights."""
    parameters = count_parameters(model)
    linear = parameters.attention + parameters.dense + parameters.experts
    return linear_bytes(linear, number_format) + plain_bytes(parameters.total - linear, number_format)


def _attention(model: Architecture) -> tuple[int, int]:
    """One layer's projections, and the norms inside its attention."""
    if model.latent is not None:
        return _latent_attention(model, model.latent)
    extras = model.extras
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    projections = model.hidden * (2 * queries + 2 * keys)
    biases = (queries + 2 * keys) * extras.has_qkv_bias + model.hidden * extras.has_output_bias
    return projections + biases, 2 * model.head_dim * extras.has_qk_norm


def _latent_attention(model: Architecture, latent: LatentAttention) -> tuple[int, int]:
    query_width = model.heads * (latent.nope_dim + latent.rope_dim)
    queries = model.hidden * query_width
    if latent.query_rank is not None:
        queries = latent.query_rank * (model.hidden + query_width)
    down = model.hidden * (latent.kv_rank + latent.rope_dim)
    up = latent.kv_rank * model.heads * (latent.nope_dim + latent.value_dim)
    out = model.heads * latent.value_dim * model.hidden
    return queries + down + up + out, (latent.query_rank or 0) + latent.kv_rank


def _feed_forward(hidden: int, width: int, *, has_bias: bool = False) -> int:
    """Gate, up and down projections."""
    return 3 * hidden * width + (2 * width + hidden) * has_bias

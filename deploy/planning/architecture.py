"""The sizes of a decoder-only transformer that decide its memory and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434 §2.1): one cached latent for all heads."""

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts in the feed-forward part of some layers."""

    count: int
    per_token: int
    width: int
    shared_width: int
    """Width of the experts that every token passes, 0 without."""
    layers: int
    """Layers that have experts; the others are dense."""
    has_bias_term: bool
    """DeepSeek-V3 keeps one correction per expert beside the gate."""


@dataclass(frozen=True, slots=True)
class Extras:
    """Small tensors by which families differ."""

    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    norms_per_layer: int = 2


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder-only transformer by its sizes."""

    name: str
    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    """Of the dense feed-forward part."""
    vocabulary: int
    context: int
    has_tied_head: bool
    windows: tuple[int | None, ...]
    """For each layer the tokens it looks back at, None for all."""
    stored_format: str
    """How the published weights are stored: bfloat16, fp8, …"""
    extras: Extras
    latent: LatentAttention | None = None
    experts: Experts | None = None
    values: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The config.json as read, of a multimodal model the language part."""

"""How long does one forward pass take? The larger of reading and computing, for weights and for attention."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.planning.architecture import Architecture
from deploy.planning.hardware import Gpu
from deploy.planning.kv_cache import NO_CACHE, KvCache
from deploy.planning.weights import (
    active_parameters,
    count_parameters,
    expert_share,
    linear_bytes,
    plain_bytes,
)

TARGET_OVERHEAD_SECONDS = 1.0e-3
DRAFT_OVERHEAD_SECONDS = 0.5e-3
"""Launches, sampling and scheduling of one pass. Fitted, with the efficiencies of `hardware`, to an 8B on an H200."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """What a forward pass of one model moves and computes on each GPU."""

    fixed_bytes: float
    """Weights that every pass reads."""
    flops_per_token: float
    cache: KvCache = NO_CACHE
    attention_flops: float = 0.0
    """Of one query for each cached token of one layer."""
    overhead_seconds: float = TARGET_OVERHEAD_SECONDS
    expert_bytes: float = 0.0
    """All routed experts; a pass reads those that its tokens choose."""
    expert_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """What runs at once."""

    batch: int
    """Sequences."""
    context: int
    """Tokens that each of them has cached."""


def pass_seconds(cost: PassCost, gpu: Gpu, load: Load, query: int) -> float:
    """Time of one pass with `query` tokens for each sequence of the batch.

    T(B, q, S) = max(W(B·q)/BW, F_token·B·q/F) + max(B·KV(S)/BW, B·q·A(S)/F) + t_oh: the roofline
    (Williams, Waterman, Patterson 2009) taken for weights and attention apart, which do not overlap.
    """
    tokens = load.batch * query
    weights = max(_weight_bytes(cost, tokens) / gpu.usable_bandwidth, cost.flops_per_token * tokens / gpu.usable_flops)
    attention = max(
        load.batch * cost.cache.read_bytes(load.context) / gpu.usable_bandwidth,
        tokens * cost.attention_flops * cost.cache.seen_tokens(load.context) / gpu.usable_flops,
    )
    return weights + attention + cost.overhead_seconds


def _weight_bytes(cost: PassCost, tokens: int) -> float:
    """Tokens that choose experts independently read E·(1 − (1 − share)^tokens) of them: expected distinct draws."""
    return cost.fixed_bytes + cost.expert_bytes * (1.0 - (1.0 - cost.expert_share) ** tokens)


def model_cost(
    model: Architecture, number_format: str, cache: KvCache, tensor_parallel: int, overhead_seconds: float
) -> PassCost:
    """The cost of a whole model on each of its GPUs. The embedding is looked up, not read, unless it is the head."""
    parameters = count_parameters(model)
    head = plain_bytes(parameters.head or parameters.embedding, number_format)
    fixed = head + linear_bytes(parameters.attention + parameters.dense, number_format)
    return PassCost(
        fixed_bytes=fixed / tensor_parallel,
        flops_per_token=2.0 * active_parameters(model) / tensor_parallel,
        cache=cache,
        attention_flops=attention_flops(model) / tensor_parallel,
        overhead_seconds=overhead_seconds,
        expert_bytes=linear_bytes(parameters.experts, number_format) / tensor_parallel,
        expert_share=expert_share(model.experts),
    )


def attention_flops(model: Architecture) -> float:
    """FLOPs of one query token for one cached token in one layer: QKᵀ and PV, 2·d each, for every head.

    With a latent both products are over the latent (arXiv:2405.04434, absorbed projections).
    """
    if model.latent is not None:
        return 2.0 * model.heads * (2 * model.latent.kv_rank + model.latent.rope_dim)
    return 4.0 * model.heads * model.head_dim

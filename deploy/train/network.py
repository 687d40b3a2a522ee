"""A head's layers as training needs them: differentiable, on tensors that are named as in the published file.

Written apart from the serving code in `replicas/heads`, whose layers are packed for inference; tests hold the two
against each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from deploy.train.rows import ChainRows
from replicas.heads.checkpoint import Checkpoint

Parameters = Mapping[str, nn.Parameter]


def trainable(checkpoint: Checkpoint) -> dict[str, nn.Parameter]:
    """Its floating-point tensors as parameters that share their memory, by name."""
    found = checkpoint.tensors.items()
    return {name: nn.Parameter(tensor) for name, tensor in found if tensor.is_floating_point()}


def linear(parameters: Parameters, name: str, rows: Tensor) -> Tensor:
    """`name.weight` [out, in] on rows [n, in], and `name.bias` [out] where there is one."""
    return functional.linear(rows, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))


def rms_norm(parameters: Parameters, name: str, rows: Tensor, epsilon: float) -> Tensor:
    """x · w / √(mean(x²) + ε) with the weight `name.weight` (Zhang, Sennrich, arXiv:1910.07467, equation 4)."""
    weight = parameters[f"{name}.weight"]
    return functional.rms_norm(rows, weight.shape, weight, epsilon)


class DraftLayer:
    """Attention and gated MLP of a Llama layer, whose attention may read rows of another width than the residual."""

    def __init__(self, parameters: Parameters, prefix: str, config: Mapping[str, Any]) -> None:
        self._parameters = parameters
        self._prefix = prefix
        self._width = int(config["head_dim"])
        self._theta = float(config["rope_theta"])
        self._epsilon = float(config["rms_norm_eps"])

    def __call__(self, inputs: Tensor, residual: Tensor, rows: ChainRows) -> Tensor:
        """Inputs [n, input width] and residual [n, hidden] to [n, hidden]; one pass of `rows`."""
        queries, keys, values = (self._heads(name, inputs) for name in ("q_proj", "k_proj", "v_proj"))
        positions = rows.positions
        seen = rows.attend(self._rotated(queries, positions), self._rotated(keys, positions), values)
        residual = residual + self._linear("self_attn.o_proj", seen)
        normed = rms_norm(self._parameters, f"{self._prefix}.post_attention_layernorm", residual, self._epsilon)
        gated = functional.silu(self._linear("mlp.gate_proj", normed)) * self._linear("mlp.up_proj", normed)
        return residual + self._linear("mlp.down_proj", gated)

    def _linear(self, name: str, rows: Tensor) -> Tensor:
        return linear(self._parameters, f"{self._prefix}.{name}", rows)

    def _heads(self, name: str, inputs: Tensor) -> Tensor:
        """[n, heads, head width]."""
        return self._linear(f"self_attn.{name}", inputs).view(len(inputs), -1, self._width)

    def _rotated(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Channels i and i + D/2 of [n, heads, D] turned together by position · θ^(-2i/D) (arXiv:2104.09864)."""
        exponents = torch.arange(0, self._width, 2, device=rows.device) / self._width
        angles = positions[:, None, None] * self._theta**-exponents
        left, right = rows.chunk(2, dim=-1)
        turned = (left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin())
        return torch.cat(turned, dim=-1)

"""Causal attention of one long span by torch's flash kernel: no mask, and no scores in memory."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from replicas.engine.decoder_config import DecoderConfig

WIDEST_HEAD = 256
FIRST_CAPABILITY = (8, 0)
"""Ampere."""


def has_flash(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether torch's flash kernel computes this model's attention on this device."""
    return (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and config.attention_softcap is None
        and config.head_dim <= WIDEST_HEAD
        and torch.cuda.get_device_capability(device) >= FIRST_CAPABILITY
    )


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """The last rows of a sequence over all of it: `[heads, rows, head_dim]` and twice `[kv_heads, keys, head_dim]`.

    Row i sees keys 0 … keys - rows + i (FlashAttention-2, Dao, arXiv:2307.08691, section 3.1, causal and aligned at
    the end); heads that share a KV head lie side by side. Elsewhere than on a GPU torch makes a mask of it.
    """
    # Here, because it imports torch's compiler: a thousand modules that no start on a CPU should pay for.
    from torch.nn.attention.bias import causal_lower_right

    bias = causal_lower_right(queries.shape[1], keys.shape[1])
    return scaled_dot_product_attention(
        queries[None], keys[None], values[None], attn_mask=bias, scale=scale, enable_gqa=True
    )[0]

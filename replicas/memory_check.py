"""Does a model fit into what is free now? Answered from file headers, before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import psutil
import torch

from fleet.errors import ConfigError
from replicas.compatibility.stored import read_shapes
from replicas.engine.decoder_config import load_config
from replicas.engine.linear import compute_dtype
from replicas.engine.model import kv_bytes_per_token

GIB = 2**30
# Activations, logits and the interpreter itself, beyond weights and KV.
WORKING_BYTES = 512 * 2**20


def check_memory(
    folder: Path,
    *,
    dtype: str,
    kv_tokens: int,
    device: torch.device,
    layers: int | None = None,
    beside: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """ConfigError before anything is loaded where weights and KV cache cannot fit into what is free now.

    `beside` is what else is needed on the device: bytes by name.
    """
    config = load_config(folder, layers=layers)
    elements = sum(math.prod(shape) for name, shape in read_shapes(folder).items() if _is_kept(name, layers))
    if config.tie_word_embeddings and device.type == "cpu":
        # The packed head is a copy of the embedding whose weights it otherwise shares.
        elements += config.vocab_size * config.hidden_size
    weights = elements * compute_dtype(dtype, device).itemsize
    cache = kv_tokens * kv_bytes_per_token(config, dtype, device.type)
    needed, available = weights + cache + sum(beside.values()) + WORKING_BYTES, _available_bytes(device)
    if needed > available:
        others = "".join(f", {name} {size / GIB:.2f}" for name, size in beside.items())
        raise ConfigError(
            f"the model needs {needed / GIB:.2f} GiB on {device.type} (weights {weights / GIB:.2f}, "
            f"KV cache {cache / GIB:.2f}{others}), {available / GIB:.2f} GiB available; "
            "lower kv_cache_gib or kv_cache_tokens, or take a smaller model or dtype"
        )


def _is_kept(name: str, layers: int | None) -> bool:
    """Whether a model cut to its first layers has this tensor."""
    _, is_layer, rest = name.partition(".layers.")
    return layers is None or not is_layer or int(rest.partition(".")[0]) < layers


def _available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)

"""Does a model fit into what is free now? Answered from file headers, before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import psutil
import torch

from fleet.errors import ConfigError
from replicas.compatibility.stored import TensorHeader, read_headers
from replicas.engine.cut_vocabulary import DRAFT_TO_TARGET
from replicas.engine.decoder_config import DecoderConfig, load_config
from replicas.engine.footprint import NARROW, Footprint, Needed, model_footprint, tensor_shapes
from replicas.engine.linear import keeping_on
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
    beside: Mapping[str, Needed] = MappingProxyType({}),
) -> None:
    """ConfigError before anything is loaded where weights and KV cache cannot fit into what is free now.

    `beside` is what else is needed on the device, by name.
    """
    config = load_config(folder, layers=layers)
    footprint, keeping = stored_footprint(folder, config, dtype), keeping_on(device, dtype)
    weights = footprint.bytes_in(keeping)
    cache = kv_tokens * kv_bytes_per_token(config, dtype, device.type)
    working = max(WORKING_BYTES, footprint.loading_bytes(keeping), *(each.loading for each in beside.values()))
    needed = weights + cache + sum(each.kept for each in beside.values()) + working
    available = _available_bytes(device)
    if needed > available:
        others = "".join(f", {name} {each.kept / GIB:.2f}" for name, each in beside.items())
        raise ConfigError(
            f"the model needs {needed / GIB:.2f} GiB on {device.type} (weights {weights / GIB:.2f}, "
            f"KV cache {cache / GIB:.2f}{others}), {available / GIB:.2f} GiB available; "
            "lower kv_cache_gib or kv_cache_tokens, or take a smaller model or dtype"
        )


def stored_footprint(folder: Path, config: DecoderConfig, dtype: str) -> Footprint:
    """What the model in a folder consists of once it is loaded in `dtype`. Raises ConfigError."""
    headers = read_headers(folder)
    cut = headers.pop(DRAFT_TO_TARGET, None)
    is_narrow = _is_narrow(headers, config, dtype)
    return model_footprint(config, is_narrow=is_narrow, head_rows=math.prod(cut.shape) if cut else None)


def is_stored_narrow(folder: Path, config: DecoderConfig, dtype: str) -> bool:
    """Whether all values of the model in a folder are of a `NARROW` format, loaded in `dtype`. Raises ConfigError."""
    return _is_narrow(read_headers(folder), config, dtype)


def _is_narrow(headers: Mapping[str, TensorHeader], config: DecoderConfig, dtype: str) -> bool:
    known = tensor_shapes(config)
    formats = {header.number_format for name, header in headers.items() if name in known}
    return dtype in NARROW or formats <= NARROW


def _available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)

"""What target and draft do alike when they load a model: device, size of the cache, the first steps."""

from __future__ import annotations

import torch

from fleet.config import EngineConfig
from fleet.errors import ConfigError
from replicas.engine.decoder_config import DecoderConfig
from replicas.engine.model import Model, Segment, kv_bytes_per_token
from replicas.memory_check import GIB


def choose_device(choice: str, key: str) -> str:
    """cpu or cuda; ConfigError, naming the config's `key`, where cuda is asked for and there is none."""
    if choice == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if choice == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{key} 'cuda' was asked for, and this machine has none that torch can use")
    return choice


def cache_tokens(config: DecoderConfig, engine: EngineConfig, context: int, *, dtype: str, device: str) -> int:
    """The KV budget in tokens, but no more than all sequences of `context` tokens together can use."""
    wanted = engine.kv_cache_tokens or int(engine.kv_cache_gib * GIB / kv_bytes_per_token(config, dtype, device))
    return max(1, min(wanted, engine.max_num_seqs * context))


def warm_up(model: Model, engine: EngineConfig) -> None:
    """Run the largest steps there will be, so that no request pays for first times and a lack of memory shows now."""
    longest = min(engine.max_num_batched_tokens, model.max_model_len, model.kv_tokens)
    model.forward([Segment(0, 0, (0,) * longest, 1)])
    sequences = min(engine.max_num_seqs, longest)
    rows = longest // sequences
    model.forward([Segment(index * rows, 0, (0,) * rows, rows) for index in range(sequences)])

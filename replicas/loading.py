"""What target and draft do alike when they load a model: device, size of the cache, the first steps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

from fleet.config import EngineConfig
from fleet.errors import ConfigError
from replicas.engine.decoder_config import DecoderConfig
from replicas.engine.graphs.recording import CudaRecorder, Recorder
from replicas.engine.model import DecoderModel, Segment, kv_bytes_per_token
from replicas.memory_check import GIB

RECORDED_ROWS = (1, 2, 4, 8)
"""Of each sequence, in the steps that are recorded before the first request: decoding and verifying short drafts."""


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


def step_recorder(device: str, engine: EngineConfig) -> Recorder | None:
    """What records small steps on this device (cpu or cuda); None where they are launched one operation at a time."""
    return CudaRecorder() if device == "cuda" and not engine.enforce_eager else None


def warm_up(model: DecoderModel, engine: EngineConfig) -> None:
    """Run the largest steps there will be, so that no request pays for first times and a lack of memory shows now.

    Where steps are recorded, also those of few rows: recording takes far longer than the step.
    """
    longest = min(engine.max_num_batched_tokens, model.max_model_len, model.kv_tokens)
    model.forward([Segment(0, 0, (0,) * longest, 1)])
    sequences = min(engine.max_num_seqs, longest)
    rows = longest // sequences
    model.forward([Segment(index * rows, 0, (0,) * rows, rows) for index in range(sequences)])
    if model.has_graphs:
        for sequences, rows in product(_doublings(engine.max_num_seqs), RECORDED_ROWS):
            if sequences * rows <= longest:
                model.forward([Segment(index * rows, 0, (0,) * rows, rows) for index in range(sequences)])


def _doublings(most: int) -> Iterator[int]:
    """1, 2, 4, … and the first that is at least `most`, cut to it."""
    number = 1
    while number < most:
        yield number
        number *= 2
    yield most

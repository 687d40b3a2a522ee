"""What target and draft do alike when they load a model: device, size of the cache, the first steps."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import product

import torch

from fleet.clock import Clock, Deadline
from fleet.config import EngineConfig
from fleet.errors import ConfigError
from replicas.engine.decoder_config import DecoderConfig
from replicas.engine.footprint import Needed
from replicas.engine.graphs.recording import CudaRecorder, Recorder
from replicas.engine.graphs.shape import FIRST_KEYS
from replicas.engine.graphs.steps import MOST_GRAPHS, RESERVED_BYTES
from replicas.engine.model import DecoderModel, kv_bytes_per_token
from replicas.engine.packing import Segment
from replicas.memory_check import GIB

logger = logging.getLogger(__name__)

RECORDED_ROWS = (1, 2, 4, 8)
"""Of each sequence, in the steps that are recorded before the first request: decoding and verifying short drafts."""
MOST_RECORDED = 2 * MOST_GRAPHS // 3
"""Of them. The rest is room for what comes up while serving: longer drafts, and contexts of unequal lengths."""
RECORDING_SECONDS = 30.0
"""After so many no further one is begun: a replica that restarts should answer soon."""


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
    return CudaRecorder() if _has_graphs(device, engine) else None


def graph_memory(device: str, engine: EngineConfig) -> dict[str, Needed]:
    """What recorded steps need beside weights and cache, by name; nothing where none are recorded."""
    return {"CUDA graphs": Needed(RESERVED_BYTES)} if _has_graphs(device, engine) else {}


def _has_graphs(device: str, engine: EngineConfig) -> bool:
    return device == "cuda" and not engine.enforce_eager


def warm_up(model: DecoderModel, engine: EngineConfig, clock: Clock) -> None:
    """Run the largest steps there will be, so that no request pays for first times and a lack of memory shows now.

    Where steps are recorded, record the usual ones too: that takes far longer than the step.
    """
    longest = min(engine.max_num_batched_tokens, model.max_model_len, model.kv_tokens)
    model.forward([Segment(0, 0, (0,) * longest, 1)])
    _record_usual(model, engine, clock)
    sequences = min(engine.max_num_seqs, longest)
    rows = longest // sequences
    model.forward([Segment(index * rows, 0, (0,) * rows, rows) for index in range(sequences)])


def _record_usual(model: DecoderModel, engine: EngineConfig, clock: Clock) -> None:
    """Record steps of every number of sequences, of `RECORDED_ROWS` each and of every length of context.

    The one that gathers most comes first, so that all others find their memory in what it needed, and a lack of it
    shows at once; then shorter contexts before longer ones, until number or time is used up. What is left is recorded
    when it is first met.
    """
    steps = {shape: step for step in _usual_steps(model, engine) if (shape := model.graph_shape(step)) is not None}
    shapes = sorted(steps, key=lambda shape: (shape.keys, shape.tokens))
    widest = max(shapes, key=lambda shape: (shape.spans * shape.keys, shape.rows), default=None)
    if widest is None:
        return
    shapes.remove(widest)
    deadline = Deadline.after(RECORDING_SECONDS, clock)
    for recorded, shape in enumerate([widest, *shapes]):
        if recorded == MOST_RECORDED or not deadline.remaining(clock):
            logger.info("%d of %d usual steps are recorded when they are first met", len(steps) - recorded, len(steps))
            return
        model.forward(steps[shape])


def _usual_steps(model: DecoderModel, engine: EngineConfig) -> Iterator[list[Segment]]:
    """Decoding, and verifying short drafts; all sequences in the same places, as nobody reads what they leave there."""
    longest = min(model.max_model_len, model.kv_tokens)
    contexts = [context for context in _doublings(longest) if context == longest or context >= FIRST_KEYS]
    for context, rows, sequences in product(contexts, RECORDED_ROWS, _doublings(engine.max_num_seqs)):
        if rows <= context and sequences * rows <= engine.max_num_batched_tokens:
            yield [Segment(0, context - rows, (0,) * rows, rows)] * sequences


def _doublings(most: int) -> list[int]:
    """1, 2, 4, … and the first that is at least `most`, cut to it."""
    return [*(1 << power for power in range((most - 1).bit_length())), most]

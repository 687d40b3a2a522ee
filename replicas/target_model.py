"""Loads the model that answers: where it lies, whether it fits, and one round of work before the first request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from fleet.clock import SystemClock
from fleet.config import EngineConfig, ModelConfig
from fleet.errors import ConfigError, OutOfMemory
from fleet.tokenizer import Tokenizer
from replicas.engine.decoder_config import context_length, load_config
from replicas.engine.footprint import Keeping, Needed
from replicas.engine.linear import keeping_on
from replicas.engine.model import DecoderModel, load_model
from replicas.loading import cache_tokens, choose_device, graph_memory, step_recorder, warm_up
from replicas.memory_check import check_memory, is_stored_narrow
from replicas.model_store import resolve_model


@dataclass(frozen=True, slots=True)
class TargetModel:
    """A model that is ready to answer."""

    name: str
    model: DecoderModel
    tokenizer: Tokenizer

    @property
    def vocab_size(self) -> int:
        """Ids below it are tokens; a model may have fewer or more rows than its tokenizer has tokens."""
        return int(min(self.model.vocab_size, self.tokenizer.vocab_size))


class TargetHead(Protocol):
    """What a head that is to sit on the target asks of it, before either is loaded."""

    def taps(self, layers: int) -> tuple[int, ...]:
        """The states that it reads of a model of so many layers. Raises ConfigError."""

    def needed(self, kv_tokens: int, keeping: Keeping, *, is_target_narrow: bool) -> Needed:
        """Its weights, and its cache beside one of the target for so many tokens. Raises ConfigError.

        `is_target_narrow`: whether the target's values are of a `NARROW` format.
        """


def load_target(
    config: ModelConfig,
    engine: EngineConfig,
    progress: Callable[[str], None],
    head: TargetHead | None = None,
) -> TargetModel:
    """Find, check, load and warm up the model. Raises ConfigError in one line where that is impossible."""
    if engine.threads is not None:
        torch.set_num_threads(engine.threads)
    device = choose_device(engine.device, "device")
    folder = resolve_model(config, progress)
    tokenizer = Tokenizer.load(folder)
    decoder = load_config(folder)
    context = context_length(decoder, config.max_model_len)
    kv_tokens = cache_tokens(decoder, engine, context, dtype=config.dtype, device=device)
    beside = graph_memory(device, engine)
    if head is not None:
        keeping = keeping_on(torch.device(device), config.dtype)
        is_narrow = is_stored_narrow(folder, decoder, config.dtype)
        beside["head"] = head.needed(kv_tokens, keeping, is_target_narrow=is_narrow)
    check_memory(folder, dtype=config.dtype, kv_tokens=kv_tokens, device=torch.device(device), beside=beside)
    progress(f"loading {config.model} in {config.dtype} on {device}, KV cache for {kv_tokens} tokens")
    try:
        model = load_model(
            folder,
            dtype=config.dtype,
            device=device,
            kv_tokens=kv_tokens,
            max_model_len=config.max_model_len,
            taps=head.taps(decoder.num_hidden_layers) if head else (),
            recorder=step_recorder(device, engine),
        )
        warm_up(model, engine, SystemClock())
    except OutOfMemory as error:
        raise ConfigError(f"{config.model} does not fit into the memory of {device}: {error}") from error
    return TargetModel(config.model, model, tokenizer)

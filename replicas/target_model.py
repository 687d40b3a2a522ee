"""Loads the model that answers: where it lies, whether it fits, and one round of work before the first request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from fleet.config import EngineConfig, ModelConfig
from fleet.errors import ConfigError, OutOfMemory
from fleet.tokenizer import Tokenizer
from replicas.engine.decoder_config import context_length, load_config
from replicas.engine.model import DecoderModel, Model, Segment, kv_bytes_per_token, load_model
from replicas.memory_check import GIB, check_memory
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


def no_taps(_layers: int) -> tuple[int, ...]:
    """For a target without a head."""
    return ()


def load_target(
    config: ModelConfig,
    engine: EngineConfig,
    progress: Callable[[str], None],
    choose_taps: Callable[[int], tuple[int, ...]] = no_taps,
) -> TargetModel:
    """Find, check, load and warm up the model. Raises ConfigError in one line where that is impossible.

    `choose_taps` says which states a head needs of a model of so many layers.
    """
    if engine.threads is not None:
        torch.set_num_threads(engine.threads)
    device = _device(engine.device)
    folder = resolve_model(config, progress)
    tokenizer = Tokenizer.load(folder)
    kv_tokens = _kv_tokens(folder, config, engine, device)
    check_memory(folder, dtype=config.dtype, kv_tokens=kv_tokens, device=torch.device(device))
    progress(f"loading {config.model} in {config.dtype} on {device}, KV cache for {kv_tokens} tokens")
    try:
        model = load_model(
            folder,
            dtype=config.dtype,
            device=device,
            kv_tokens=kv_tokens,
            max_model_len=config.max_model_len,
            taps=choose_taps(load_config(folder).num_hidden_layers),
        )
        warm_up(model, engine)
    except OutOfMemory as error:
        raise ConfigError(f"{config.model} does not fit into the memory of {device}: {error}") from error
    return TargetModel(config.model, model, tokenizer)


def warm_up(model: Model, engine: EngineConfig) -> None:
    """Run the largest steps there will be, so that no request pays for first times and a lack of memory shows now."""
    longest = min(engine.max_num_batched_tokens, model.max_model_len, model.kv_tokens)
    model.forward([Segment(0, 0, (0,) * longest, 1)])
    sequences = min(engine.max_num_seqs, longest)
    rows = longest // sequences
    model.forward([Segment(index * rows, 0, (0,) * rows, rows) for index in range(sequences)])


def _kv_tokens(folder: Path, config: ModelConfig, engine: EngineConfig, device: str) -> int:
    """The KV budget in tokens, but no more than all sequences together can use."""
    decoder = load_config(folder)
    wanted = engine.kv_cache_tokens or int(
        engine.kv_cache_gib * GIB / kv_bytes_per_token(decoder, config.dtype, device)
    )
    context = context_length(decoder, config.max_model_len)
    return max(1, min(wanted, engine.max_num_seqs * context))


def _device(choice: str) -> str:
    if choice == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if choice == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device 'cuda' was asked for, and this machine has none that torch can use")
    return choice

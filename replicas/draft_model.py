"""Which model drafts, how much cache it gets, and how it introduces itself to the target."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from fleet.clock import SystemClock
from fleet.config import EngineConfig, ModelConfig, SpeculativeConfig
from fleet.errors import ConfigError, OutOfMemory
from fleet.tokenizer import Tokenizer
from replicas.draft_engine import DraftEngine
from replicas.engine.decoder_config import load_config, shares_embedding
from replicas.engine.model import Model, load_model
from replicas.engine.sampling import Sampler
from replicas.loading import cache_tokens, choose_device, graph_memory, step_recorder, warm_up
from replicas.memory_check import check_memory
from replicas.model_store import resolve_model
from replicas.speculation.draft_session import DraftLimits
from replicas.speculation.messages import PROTOCOL_VERSION, Hello

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Draft:
    """A model that is ready to propose."""

    engine: DraftEngine
    hello: Hello
    limits: DraftLimits


def load_draft(target: ModelConfig, speculative: SpeculativeConfig, engine: EngineConfig) -> Draft:
    """Find, check and load the draft. Raises ConfigError in one line where that is impossible.

    With `layers` it is the target's own first layers; its context is never longer than the target's, or than the
    config says.
    """
    if speculative.method != "draft_model":
        raise ConfigError(f"method '{speculative.method}' needs no draft worker")
    if speculative.draft_threads is not None:
        torch.set_num_threads(speculative.draft_threads)
    chosen = target
    if speculative.model is not None:
        chosen = ModelConfig(model=speculative.model, revision=speculative.revision, dtype=target.dtype)
    folder = resolve_model(chosen, logger.info)
    lender = resolve_model(target, logger.info) if shares_embedding(folder) else None
    tokenizer = Tokenizer.load(lender or folder)
    try:
        model = _load_model(folder, lender, target, speculative, engine)
    except OutOfMemory as error:
        raise ConfigError(f"the draft {chosen.model} does not fit into memory: {error}") from error
    vocab_size = min(model.vocab_size, tokenizer.vocab_size)
    hello = Hello(
        protocol_version=PROTOCOL_VERSION,
        tokenizer_hash=tokenizer.content_hash,
        vocab_size=tokenizer.vocab_size,
        model=chosen.model if speculative.layers is None else f"{chosen.model}, first {speculative.layers} layers",
        revision=chosen.revision or "",
        max_model_len=model.max_model_len,
        max_draft_tokens=speculative.num_speculative_tokens,
        names_distributions=True,
    )
    limits = DraftLimits(
        vocab_size=vocab_size,
        max_model_len=model.max_model_len,
        max_draft_tokens=speculative.num_speculative_tokens,
        max_step_tokens=engine.max_num_batched_tokens,
    )
    return Draft(DraftEngine(model, Sampler(vocab_size, tokenizer.eos_token_ids)), hello, limits)


def _load_model(
    folder: Path, lender: Path | None, target: ModelConfig, speculative: SpeculativeConfig, engine: EngineConfig
) -> Model:
    """The model with a cache for all sequences that the target may run, within the engine's budget."""
    config = load_config(folder, layers=speculative.layers)
    device = choose_device(speculative.draft_device, "draft_device")
    limits = (config.max_position_embeddings, target.max_model_len, speculative.max_model_len)
    max_model_len = min(limit for limit in limits if limit is not None)
    kv_tokens = cache_tokens(config, engine, max_model_len, dtype=target.dtype, device=device)
    check_memory(
        folder,
        dtype=target.dtype,
        kv_tokens=kv_tokens,
        device=torch.device(device),
        layers=speculative.layers,
        beside=graph_memory(device, engine),
    )
    model = load_model(
        folder,
        dtype=target.dtype,
        device=device,
        kv_tokens=kv_tokens,
        layers=speculative.layers,
        max_model_len=max_model_len,
        lender=lender,
        recorder=step_recorder(device, engine),
    )
    # The first request's draft must not be late because the draft's first steps are slow.
    warm_up(model, engine, SystemClock())
    return model

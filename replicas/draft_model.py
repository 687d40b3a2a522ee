"""Which model drafts, how much cache it gets, and how it introduces itself to the target."""

from __future__ import annotations

import logging

import torch

from fleet.config import EngineConfig, ModelConfig, SpeculativeConfig
from fleet.errors import ConfigError
from fleet.tokenizer import Tokenizer
from replicas.draft_engine import DraftEngine
from replicas.engine.model import kv_bytes_per_token, load_config, load_model
from replicas.engine.sampling import Sampler
from replicas.model_store import GIB, check_memory, resolve_model
from replicas.speculation.messages import PROTOCOL_VERSION, Hello

logger = logging.getLogger(__name__)


def load_draft(target: ModelConfig, speculative: SpeculativeConfig, engine: EngineConfig) -> tuple[DraftEngine, Hello]:
    """The drafting engine and its Hello. Raises ConfigError in one line when the model is unusable.

    With `layers` it is the target's own first layers; its context is never longer than the target's.
    """
    if speculative.method != "draft_model":
        raise ConfigError(f"method '{speculative.method}' needs no draft worker")
    chosen = target if speculative.model is None else ModelConfig(model=speculative.model, dtype=target.dtype)
    if speculative.draft_threads is not None:
        torch.set_num_threads(speculative.draft_threads)
    folder = resolve_model(chosen, logger.info)
    config = load_config(folder, layers=speculative.layers)
    max_model_len = min(config.max_position_embeddings, target.max_model_len or config.max_position_embeddings)
    kv_tokens = engine.kv_cache_tokens or int(engine.kv_cache_gib * GIB / kv_bytes_per_token(config, chosen.dtype))
    kv_tokens = min(kv_tokens, engine.max_num_seqs * max_model_len)
    device = _device(speculative.draft_device)
    check_memory(
        folder, dtype=chosen.dtype, kv_tokens=kv_tokens, device=torch.device(device), layers=speculative.layers
    )
    model = load_model(
        folder,
        dtype=chosen.dtype,
        device=device,
        kv_tokens=kv_tokens,
        layers=speculative.layers,
        max_model_len=max_model_len,
    )
    tokenizer = Tokenizer.load(folder)
    hello = Hello(
        protocol_version=PROTOCOL_VERSION,
        tokenizer_hash=tokenizer.content_hash,
        vocab_size=tokenizer.vocab_size,
        model=chosen.model if speculative.layers is None else f"{chosen.model}, first {speculative.layers} layers",
        revision=chosen.revision or "",
        max_model_len=max_model_len,
        max_draft_tokens=speculative.num_speculative_tokens,
    )
    return DraftEngine(model, Sampler(tokenizer.vocab_size, tokenizer.eos_token_ids)), hello


def _device(choice: str) -> str:
    if choice == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return choice

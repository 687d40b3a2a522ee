"""Cached tokens and sequences: the reference's displacement table, and what the engine really allocates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from deploy.planning.config_file import find_architecture
from deploy.planning.kv_cache import NO_CACHE, kv_cache
from deploy.planning.memory import MemoryPlan, plan_memory, require_room
from deploy.planning.weights import weight_bytes
from fleet.errors import ConfigError
from replicas.engine.decoder_config import load_config
from replicas.engine.kv_arena import KvArena
from replicas.engine.model import kv_bytes_per_token
from tests.deploy.planning.references import GIB, deployment, proposer
from tests.tiny_models import family_configs, tiny_model_folder

DRAFT_1B = "draft_model:meta-llama/Llama-3.2-1B-Instruct"
DRAFT_8B = "draft_model:meta-llama/Llama-3.1-8B-Instruct"
TABLE = [
    ("llama-3.1-8b", "H200", 1, None, 885_883, 216),
    ("llama-3.1-8b", "H200", 1, DRAFT_1B, 693_567, 169),
    ("llama-3.1-8b", "H200", 1, "eagle3", 852_762, 208),
    ("llama-3.1-8b", "H200", 1, "medusa,k=5", 844_523, 206),
    ("llama-3.1-8b", "H100", 1, None, 444_252, None),
    ("llama-3.1-8b", "H100", 1, DRAFT_1B, 340_000, None),
    ("llama-3.1-8b", "H100", 1, "eagle3", 424_000, None),
    ("llama-3.1-8b", "H100", 1, "medusa,k=5", 403_000, None),
    ("llama-3.1-70b", "H200", 4, None, 1_182_588, None),
    ("llama-3.1-70b", "H200", 4, DRAFT_8B, 810_000, None),
    ("llama-3.1-70b", "H200", 4, DRAFT_1B, 1_068_000, None),
]


@pytest.mark.parametrize(("model", "gpu", "gpus", "text", "tokens", "sequences"), TABLE)
def test_cached_tokens_agree_with_the_reference(
    model: str, gpu: str, gpus: int, text: str | None, tokens: int, sequences: int | None
) -> None:
    plan = plan_memory(deployment(model, gpu, gpus), proposer(text, model, gpus) if text else None)
    assert plan.tokens == pytest.approx(tokens, rel=0.003)
    if sequences is not None:
        assert abs(plan.sequences(4096) - sequences) <= 1


@pytest.mark.parametrize(
    ("model", "bytes_per_token"),
    [("llama-3.1-8b", 131_072), ("llama-3.1-70b", 327_680), ("llama-3.2-1b", 32_768), ("deepseek-v3", 70_272)],
)
def test_a_token_takes_what_the_reference_says(model: str, bytes_per_token: int) -> None:
    assert kv_cache(find_architecture(model), 2.0).bytes_per_token == bytes_per_token


def test_a_head_takes_little_and_medusa_no_cache() -> None:
    assert proposer("eagle3").cache.bytes_per_token == 4_096
    assert proposer("eagle3").weight_bytes / GIB == pytest.approx(0.79, abs=0.005)
    assert proposer("medusa,k=5").cache.bytes_per_token == 0
    assert proposer("medusa,k=5").weight_bytes / GIB == pytest.approx(5.05, abs=0.005)


def test_lookup_displaces_nothing_but_the_slots_of_its_drafts() -> None:
    alone, beside = (plan_memory(deployment("llama-3.1-8b", "H200"), p) for p in (None, proposer("ngram")))
    assert alone.tokens == beside.tokens
    assert alone.sequences(4096) - beside.sequences(4096) in (0, 1)


def test_a_draft_on_its_own_gpu_displaces_nothing_on_the_targets() -> None:
    alone, apart = (plan_memory(deployment("llama-3.1-8b", "H200"), p) for p in (None, proposer(DRAFT_1B + ",on=own")))
    assert apart.tokens == alone.tokens
    assert apart.proposer_weights == 0


def test_a_gpu_keeps_at_least_one_head_and_every_latent() -> None:
    llama, deepseek = find_architecture("llama-3.1-8b"), find_architecture("deepseek-v3")
    per_token = [kv_cache(llama, 2.0, gpus).bytes_per_token for gpus in (1, 2, 8, 16)]
    assert per_token == [131_072, 65_536, 16_384, 16_384]
    assert kv_cache(deepseek, 2.0, 8).bytes_per_token == kv_cache(deepseek, 2.0, 1).bytes_per_token


@pytest.mark.parametrize(("model", "full_layers"), [("gemma-3-27b", 10), ("mistral-7b", 0), ("llama-3.1-8b", 32)])
def test_only_full_layers_read_more_of_a_longer_context(model: str, full_layers: int) -> None:
    cache = kv_cache(find_architecture(model), 2.0)
    assert dict(cache.windows).get(None, 0) == full_layers
    growth = cache.read_bytes(20_001) - cache.read_bytes(20_000)
    assert growth == full_layers * cache.bytes_per_layer


@given(tokens=st.integers(1, 10_000))
def test_what_is_read_is_the_sum_of_what_each_layer_looks_back_at(tokens: int) -> None:
    """Against counting cached tokens one by one."""
    model = find_architecture("gemma-3-27b")
    cache = kv_cache(model, 2.0)
    seen = sum(len(range(tokens)[-window:] if window else range(tokens)) for window in model.windows)
    assert cache.read_bytes(tokens) == seen * cache.bytes_per_layer


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2-sliding", "gemma3"])
def test_a_sequence_takes_what_the_engines_arena_holds_of_it_whatever_the_windows(tmp_path: Path, family: str) -> None:
    family_configs()[family].save_pretrained(tmp_path)
    tokens = 100
    cache = kv_cache(find_architecture(str(tmp_path)), 4.0)
    arena = KvArena(load_config(tmp_path), tokens, dtype=torch.float32, device=torch.device("cpu"))
    plan = MemoryPlan(float(arena.size_bytes), 0.0, 0.0, 0.0, cache, NO_CACHE, draft_length=0)
    assert plan.tokens == tokens
    assert [plan.sequences(context) for context in (9, 49, 99)] == [10, 2, 1]


def test_what_does_not_fit_is_one_line_with_its_parts() -> None:
    plan = plan_memory(deployment("llama-3.1-70b", "H100"))
    with pytest.raises(
        ConfigError, match=r"does not fit: of 71\.2 GiB usable per GPU, weights take 131\.4, reserve 2\.0"
    ):
        require_room(plan, 4096, "llama-3.1-70b")
    assert plan.tokens == 0
    assert plan.sequences(4096) == 0
    require_room(plan_memory(deployment("llama-3.1-8b", "H100")), 4096, "llama-3.1-8b")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3"])
def test_the_plan_is_what_the_engine_allocates(tmp_path: Path, family: str) -> None:
    """Weights as they lie on disk, and the engine's own figure for a cached token."""
    folder = tiny_model_folder(tmp_path / family, family_configs()[family])
    model = find_architecture(str(folder))
    with safe_open(folder / "model.safetensors", framework="np") as tensors:
        stored = sum(tensors.get_tensor(name).nbytes for name in tensors.keys())  # noqa: SIM118 (not a mapping)
    assert weight_bytes(model, "float32") == stored
    assert kv_cache(model, 4.0).bytes_per_token == kv_bytes_per_token(load_config(folder), "float32")


def test_a_reserve_is_taken_from_the_cache_alone() -> None:
    plan = deployment("llama-3.1-8b", "H100")
    less = plan_memory(replace(plan, reserve_bytes=plan.reserve_bytes + GIB))
    assert plan_memory(plan).cache - less.cache == pytest.approx(GIB)

"""The plan's memory beside what the engine really allocates, with every proposer on a tiny target in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.planning.config_file import find_architecture
from deploy.planning.kv_cache import kv_cache
from deploy.planning.memory import Deployment, MemoryPlan, plan_memory
from deploy.planning.proposers import Proposer, build_proposer, parse_proposer
from deploy.planning.weights import weight_bytes
from fleet.clock import SystemClock
from fleet.config import SpeculativeConfig
from replicas.engine.kv_extents import KvExtents
from replicas.engine.model import DecoderModel, load_model
from replicas.heads.checkpoint import read_checkpoint
from replicas.heads.eagle_proposer import EagleProposer
from replicas.heads.loading import PublishedHead
from tests.replicas.heads import checkpoints
from tests.replicas.heads.heads_rig import SAMPLER
from tests.tiny_models import SIZES, tiny_model_folder

MEMORY = 4 * 2**20
CONTEXT = 64
LENGTH = 3
EXACT = 0.05
HEADS: dict[str, Callable[[], checkpoints.Files]] = {
    "eagle": lambda: checkpoints.eagle().drop("embed_tokens.weight"),
    "eagle3": lambda: checkpoints.eagle3(draft_ids=tuple(range(checkpoints.VOCABULARY))),
    "medusa": lambda: checkpoints.medusa(heads=LENGTH),
}
TARGET = {
    "vocab_size": checkpoints.VOCABULARY,
    "hidden_size": checkpoints.HIDDEN,
    "intermediate_size": 24,
    "num_hidden_layers": checkpoints.LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig

    return tiny_model_folder(tmp_path_factory.mktemp("target"), LlamaConfig(**(SIZES | TARGET)))


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig

    return tiny_model_folder(
        tmp_path_factory.mktemp("draft"), LlamaConfig(**(SIZES | TARGET | {"num_hidden_layers": 2}))
    )


def planned(target: Path, text: str) -> tuple[MemoryPlan, Proposer]:
    model = find_architecture(str(target))
    spec = parse_proposer(text, draft_length=LENGTH, acceptance=None)
    proposer = build_proposer(spec, model, 1, kv_bytes=4.0, head_bytes=4.0)
    weights, cache = weight_bytes(model, "float32"), kv_cache(model, 4.0)
    return plan_memory(Deployment(MEMORY, 1.0, 0.0, weights, cache), proposer), proposer


def loaded(folder: Path, tokens: int, taps: tuple[int, ...] = ()) -> DecoderModel:
    return load_model(folder, dtype="float32", device="cpu", kv_tokens=tokens, taps=taps)


def arena_bytes(model: DecoderModel) -> int:
    return model._arena._memory.nbytes


def check_sequences(plan: MemoryPlan, tokens: int) -> None:
    """As the engine's allocator hands them out, each with room for its drafts and the bonus."""
    extents, fits = KvExtents(tokens), 0
    while extents.allocate(CONTEXT + LENGTH + 1) is not None:
        fits += 1
    assert fits == pytest.approx(plan.sequences(CONTEXT), rel=EXACT)


@pytest.mark.parametrize("text", ["ngram", "suffix"])
def test_lookup_leaves_the_whole_cache_to_the_target(target: Path, text: str) -> None:
    plan, _ = planned(target, text)
    tokens = plan.tokens(CONTEXT)
    assert arena_bytes(loaded(target, tokens)) == pytest.approx(plan.cache, rel=EXACT)
    check_sequences(plan, tokens)


@pytest.mark.parametrize("method", HEADS)
def test_a_heads_weights_and_its_own_cache_are_those_that_the_plan_takes_from_the_target(
    target: Path, tmp_path: Path, method: str
) -> None:
    plan, proposer = planned(target, method)
    tokens = plan.tokens(CONTEXT)
    files = HEADS[method]()
    assert sum(4 * tensor.numel() for tensor in files.tensors.values()) == pytest.approx(
        proposer.weight_bytes, rel=EXACT
    )
    head = PublishedHead(
        SpeculativeConfig(method=method, model="head", num_speculative_tokens=LENGTH),  # type: ignore[arg-type]
        read_checkpoint(files.write(tmp_path / method)),
    )
    model = loaded(target, tokens, head.taps(checkpoints.LAYERS))
    drafting, _ = head.on(model, "target", SAMPLER, SystemClock())
    taken = arena_bytes(model)
    if isinstance(drafting, EagleProposer):
        own = drafting._cache
        assert own.shape.tokens == tokens
        taken += own.keys.nbytes + own.values.nbytes
        assert own.keys.nbytes + own.values.nbytes == tokens * proposer.cache.bytes_per_token
    assert taken == pytest.approx(plan.cache, rel=EXACT)
    check_sequences(plan, tokens)


def test_a_draft_model_takes_its_cache_for_as_many_tokens_as_the_target(target: Path, draft: Path) -> None:
    plan, _ = planned(target, f"draft_model:{draft}")
    tokens = plan.tokens(CONTEXT)
    taken = arena_bytes(loaded(target, tokens)) + arena_bytes(loaded(draft, tokens))
    assert taken == pytest.approx(plan.cache, rel=EXACT)
    check_sequences(plan, tokens)

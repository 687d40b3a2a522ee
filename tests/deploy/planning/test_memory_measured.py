"""The plan's memory beside what the engine really allocates, with every proposer on a tiny target in float32."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.planning.config_file import find_architecture
from deploy.planning.formats import Formats
from deploy.planning.kv_cache import kv_cache
from deploy.planning.memory import Deployment, MemoryPlan, plan_memory
from deploy.planning.proposers import Proposer, build_proposer, parse_proposer
from deploy.planning.weights import weight_bytes
from fleet.clock import SystemClock
from fleet.config import DEFAULT_MODEL, SpeculativeConfig
from fleet.errors import ConfigError
from replicas.engine.footprint import Keeping, Layout
from replicas.engine.kv_extents import KvExtents
from replicas.engine.model import DecoderModel, load_model
from replicas.heads.checkpoint import read_checkpoint
from replicas.heads.eagle_proposer import EagleProposer
from replicas.heads.loading import PublishedHead
from replicas.model_store import resolve_head
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
STORED: dict[str, Callable[[], checkpoints.Files]] = {
    "eagle": checkpoints.eagle,
    "eagle3": lambda: checkpoints.eagle3(prefix="layers.0"),
    "medusa": lambda: checkpoints.medusa_converted(rows=len(checkpoints.DRAFT_IDS), token_map=checkpoints.DRAFT_IDS),
}
"""Of sizes that no rule would guess: an embedding of the head's own, a cut vocabulary."""
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
    proposer = build_proposer(spec, model, 1, Formats("float32", 4.0))
    weights, cache = weight_bytes(model, "float32"), kv_cache(model, 4.0)
    return plan_memory(Deployment(MEMORY, 1.0, 0.0, weights, cache), proposer), proposer


def loaded(folder: Path, tokens: int, taps: tuple[int, ...] = ()) -> DecoderModel:
    return load_model(folder, dtype="float32", device="cpu", kv_tokens=tokens, taps=taps)


def arena_bytes(model: DecoderModel) -> int:
    return model._arena.memory.nbytes


def check_sequences(plan: MemoryPlan, tokens: int) -> None:
    """As the engine's allocator hands them out, each with room for its drafts and the bonus."""
    extents, fits = KvExtents(tokens), 0
    while extents.allocate(CONTEXT + LENGTH + 1) is not None:
        fits += 1
    assert fits == pytest.approx(plan.sequences(CONTEXT), rel=EXACT)


@pytest.mark.parametrize("text", ["ngram", "suffix"])
def test_lookup_leaves_the_whole_cache_to_the_target(target: Path, text: str) -> None:
    plan, _ = planned(target, text)
    tokens = plan.tokens
    assert arena_bytes(loaded(target, tokens)) == pytest.approx(plan.cache, rel=EXACT)
    check_sequences(plan, tokens)


@pytest.mark.parametrize(
    ("method", "files", "is_named"),
    [
        *((name, files, False) for name, files in HEADS.items()),
        *((name, files, True) for name, files in STORED.items()),
        ("eagle", checkpoints.eagle_cut, True),
    ],
    ids=[*(f"{name}-of-usual-size" for name in HEADS), *(f"{name}-in-its-folder" for name in STORED), "eagle-cut"],
)
def test_a_heads_weights_and_its_own_cache_are_those_that_the_plan_takes_from_the_target(
    target: Path, tmp_path: Path, method: str, files: Callable[[], checkpoints.Files], is_named: bool
) -> None:
    folder = files().write(tmp_path / method)
    plan, proposer = planned(target, f"{method}:{folder}" if is_named else method)
    tokens = plan.tokens
    head = PublishedHead(
        SpeculativeConfig(method=method, model="head", num_speculative_tokens=LENGTH),  # type: ignore[arg-type]
        read_checkpoint(folder),
    )
    floats = [tensor for tensor in head.checkpoint.tensors.values() if tensor.is_floating_point()]
    assert sum(tensor.numel() for tensor in floats) == pytest.approx(proposer.parameters, rel=EXACT)
    kept = head.needed(0, Keeping(4, Layout.PLAIN), is_target_narrow=False).kept
    assert kept == pytest.approx(proposer.weight_bytes, rel=EXACT)
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("medusa:{eagle}", "the folder holds eagle"),
        ("eagle:{target}", "the folder holds draft_model"),
        ("eagle:/nowhere", "no such folder; write 'eagle' alone"),
        ("medusa:{medusa},k=4", "does not fit target0: 3 heads cannot draft 4 tokens"),
        ("eagle:{wide}", "does not fit target0: the target's is 16, the head was made for 64"),
        ("ngram:{eagle}", "takes no model, write 'ngram'"),
    ],
)
def test_a_folder_that_is_not_the_heads_or_another_targets_is_refused(
    target: Path, tmp_path: Path, text: str, message: str
) -> None:
    folders = {
        "eagle": checkpoints.eagle().write(tmp_path / "eagle"),
        "medusa": checkpoints.medusa().write(tmp_path / "medusa"),
        "wide": checkpoints.eagle(hidden_size=64).write(tmp_path / "wide"),
        "target": target,
    }
    with pytest.raises(ConfigError, match=message) as refused:
        planned(target, text.format(**folders))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("method", HEADS)
def test_the_shipped_heads_are_planned_as_large_as_their_files(method: str) -> None:
    folder = resolve_head(f"{DEFAULT_MODEL}-{method}", None, lambda line: None)
    spec = parse_proposer(f"{method}:{folder}", draft_length=4, acceptance=None)
    proposer = build_proposer(spec, find_architecture(DEFAULT_MODEL), 1)
    assert 2 * proposer.parameters == pytest.approx((folder / "model.safetensors").stat().st_size, rel=0.01)


def test_the_shipped_draft_reads_its_layers_and_the_rows_of_the_head_that_it_has() -> None:
    folder = resolve_head(f"{DEFAULT_MODEL}-draft", None, lambda line: None)
    spec = parse_proposer(f"draft_model:{folder}", draft_length=4, acceptance=None)
    cost = build_proposer(spec, find_architecture(DEFAULT_MODEL), 1).cost
    rows = json.loads((folder / "config.json").read_text())["draft_vocab_size"]
    assert cost is not None
    read = (folder / "model.safetensors").stat().st_size + 2 * rows * 576
    assert cost.fixed_bytes == pytest.approx(read, rel=0.02)
    assert cost.flops_per_token == pytest.approx(read, rel=0.02)


def test_a_draft_model_takes_its_cache_for_as_many_tokens_as_the_target(target: Path, draft: Path) -> None:
    plan, _ = planned(target, f"draft_model:{draft}")
    tokens = plan.tokens
    taken = arena_bytes(loaded(target, tokens)) + arena_bytes(loaded(draft, tokens))
    assert taken == pytest.approx(plan.cache, rel=EXACT)
    check_sequences(plan, tokens)


def test_a_head_that_drafts_a_part_of_the_vocabulary_reads_those_rows_and_keeps_them_twice(
    target: Path, tmp_path: Path
) -> None:
    whole, cut = (
        planned(target, f"eagle:{files().write(tmp_path / name)}")[1]
        for name, files in (("whole", HEADS["eagle"]), ("cut", checkpoints.eagle_cut))
    )
    assert whole.cost is not None
    assert cut.cost is not None
    drafted, width = len(checkpoints.DRAFT_IDS), checkpoints.HIDDEN
    assert cut.parameters == whole.parameters
    assert whole.cost.fixed_bytes - cut.cost.fixed_bytes == 4 * width * (checkpoints.VOCABULARY - drafted)
    assert cut.weight_bytes - whole.weight_bytes == 4 * width * drafted

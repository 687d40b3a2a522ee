"""Before the first request: what a head needs is counted, and its first drafts are behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig

from deploy.bench.allocated import allocated_bytes
from fleet.config import EngineConfig, ModelConfig, SpeculativeConfig
from fleet.errors import ConfigError
from replicas import memory_check
from replicas.engine.footprint import Keeping, Layout, Needed
from replicas.engine.linear import Linear, keeping_on, make_linear
from replicas.engine.model import load_model
from replicas.heads import checkpoint
from replicas.heads.loading import read_head
from replicas.heads.warming import warm_up
from replicas.speculation.tree import Tree
from replicas.target_model import load_target
from tests.fakes import ManualClock
from tests.replicas.heads.checkpoints import VOCABULARY, Files, eagle, eagle3, medusa, random_tensors
from tests.replicas.heads.heads_rig import SAMPLER, Story, features, head_from, proposer_on
from tests.tiny_models import SIZES, tiny_model_folder

KV_TOKENS = 500


def config_for(method: str, folder: Path) -> SpeculativeConfig:
    return SpeculativeConfig.model_validate({"method": method, "model": str(folder), "num_speculative_tokens": 2})


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(("method", "files"), [("eagle", eagle()), ("eagle3", eagle3()), ("medusa", medusa())])
def test_what_a_head_needs_is_its_tensors_and_the_cache_that_it_will_make(
    method: str, files: Files, layout: Layout, tmp_path: Path
):
    published = read_head(config_for(method, files.write(tmp_path / method)), lambda line: None)
    # The files' float32 numbers are none that half the bytes could hold: every layout keeps them as they are.
    weights = sum(4 * tensor.numel() for tensor in files.tensors.values() if tensor.is_floating_point())
    made: list[int] = []
    if method != "medusa":
        head = head_from(files, tmp_path / "again")
        cache = proposer_on(head, Tree.chain(2), kv_tokens=KV_TOKENS)._cache
        made = [cache.keys.nbytes, cache.values.nbytes]
    assert published.needed(KV_TOKENS, Keeping(4, layout), is_target_narrow=False).kept == weights + sum(made)


def test_a_head_that_does_not_fit_beside_the_target_is_said_before_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sizes = {**SIZES, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 8, "vocab_size": VOCABULARY}
    model = ModelConfig(model=str(tiny_model_folder(tmp_path / "target", LlamaConfig(**sizes))), dtype="float32")
    engine = EngineConfig(kv_cache_tokens=KV_TOKENS, threads=1, device="cpu")
    head = read_head(config_for("eagle3", eagle3().write(tmp_path / "eagle3")), lambda line: None)
    load_target(model, engine, lambda line: None, head)
    alone = 2**20 + memory_check.WORKING_BYTES
    monkeypatch.setattr(memory_check, "_available_bytes", lambda device: alone)
    monkeypatch.setattr(memory_check, "GIB", 1)
    load_target(model, engine, lambda line: None)
    for needed, said in ((Needed(2**20), 2**20), (Needed(1, loading=memory_check.WORKING_BYTES + 2**20), 1)):
        monkeypatch.setattr(type(head), "needed", lambda self, *of_target, needed=needed, **more: needed)
        with pytest.raises(ConfigError, match=rf"KV cache .*, head {said}.00\), .* available"):
            load_target(model, engine, lambda line: None, head)


@pytest.mark.parametrize(("dtype", "is_narrow"), [("bfloat16", True), ("float32", False)])
def test_a_head_is_told_whether_the_rows_that_it_may_borrow_are_narrow(
    dtype: str, is_narrow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The target is stored in float32, so only loading it in bfloat16 makes it so."""
    sizes = {**SIZES, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 8, "vocab_size": VOCABULARY}
    model = ModelConfig(model=str(tiny_model_folder(tmp_path / "target", LlamaConfig(**sizes))), dtype=dtype)
    head = read_head(config_for("eagle", eagle().write(tmp_path / "eagle")), lambda line: None)
    told: list[bool] = []
    monkeypatch.setattr(
        type(head),
        "needed",
        lambda self, kv_tokens, keeping, is_target_narrow: told.append(is_target_narrow) or Needed(0),
    )
    load_target(model, EngineConfig(kv_cache_tokens=KV_TOKENS, threads=1, device="cpu"), lambda line: None, head)
    assert told == [is_narrow]


def test_a_head_takes_no_more_while_it_is_loaded_than_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Seen whenever a layer is about to be laid out; all layers widened at once would take three times what is kept."""
    hidden, vocabulary, heads = 512, 2000, 4
    shapes: dict[str, tuple[int, ...]] = {}
    for number in range(heads):
        shapes |= {f"{number}.0.linear.weight": (hidden, hidden), f"{number}.1.weight": (vocabulary, hidden)}
    narrow = {name: tensor.bfloat16() for name, tensor in random_tensors(shapes).items()}
    folder = Files({}, narrow).write(tmp_path / "medusa")
    config = LlamaConfig(**SIZES | {"hidden_size": hidden, "num_attention_heads": 8, "vocab_size": vocabulary})
    model = load_model(tiny_model_folder(tmp_path / "model", config), dtype="float32", device="cpu", kv_tokens=8)
    published = read_head(config_for("medusa", folder), lambda line: None)
    make_linear(torch.ones(16, 16))  # what the library keeps for itself from its first use on
    before, taken = allocated_bytes(), []

    def noted(weight: Tensor, bias: Tensor | None = None) -> Linear:
        taken.append(allocated_bytes() - before)
        return make_linear(weight, bias)

    monkeypatch.setattr(checkpoint, "make_linear", noted)
    proposer, _ = published.on(model, "target", SAMPLER, ManualClock())
    keeping = keeping_on(torch.device("cpu"), "float32")
    needed = published.needed(0, keeping, is_target_narrow=False)
    assert len(taken) == 2 * heads
    assert max(taken) <= needed.kept + needed.loading
    assert needed.loading == 2 * keeping.number_bytes * vocabulary * hidden
    assert allocated_bytes() - before == pytest.approx(needed.kept, rel=0.02)
    assert proposer is not None


def test_warming_up_drafts_for_one_and_for_all_and_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    head = head_from(eagle3(), tmp_path)
    batches: list[int] = []
    logits = type(head).logits
    monkeypatch.setattr(type(head), "logits", lambda self, states: batches.append(len(states)) or logits(self, states))
    width = 3 * 16
    fresh, warmed = (proposer_on(head, Tree.of_counts([2, 1])) for _ in range(2))
    warm_up(warmed, torch.zeros((1, width)), sequences=3, depth=2)
    assert batches == [1, 2, 3, 6], "two levels, for one sequence and then for three"
    assert warmed.used_tokens == 0
    drafts = []
    for proposer in (fresh, warmed):
        story = Story(proposer, 1, [3, 4, 5, 6, 7], features(20, width, seed=1))
        story.read(4)
        story.open()
        drafts.append(story.draft())
    assert drafts[0] == drafts[1]
    assert drafts[0].token_ids


def test_without_room_for_a_draft_warming_up_is_quiet(tmp_path: Path):
    proposer = proposer_on(head_from(eagle3(), tmp_path), Tree.chain(2), kv_tokens=4)
    warm_up(proposer, torch.zeros((1, 48)), sequences=2, depth=2)
    assert proposer.used_tokens == 0

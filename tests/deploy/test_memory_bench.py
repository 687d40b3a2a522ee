"""The plan's memory beside what a loaded path holds: of a small target, and of the real one with what is shipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from deploy.bench.memory import ARMS, BASELINE, LENGTH, Room, Row, planned, proposer_of, table
from deploy.bench.memory_held import Asked, Held, look
from deploy.planning.config_file import find_architecture
from deploy.planning.formats import formats_here
from deploy.planning.kv_cache import NO_CACHE, KvCache
from deploy.planning.memory import MemoryPlan
from deploy.planning.proposers import build_proposer, parse_proposer
from fleet.config import SpeculativeConfig
from replicas.engine.linear import keeping_on
from replicas.heads.loading import read_head
from tests.replicas.heads import checkpoints
from tests.tiny_models import SIZES, tiny_model_folder

NEAR = 0.05
MIB = 2**20
WIDE = {"hidden_size": 512, "intermediate_size": 1500, "num_attention_heads": 8, "num_hidden_layers": 2}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_loaded_models_bytes_are_those_of_the_plan(dtype: str, is_tied: bool, tmp_path: Path) -> None:
    config = LlamaConfig(**(SIZES | WIDE | {"vocab_size": 3000}), tie_word_embeddings=is_tied)
    folder = tiny_model_folder(tmp_path / "model", config)
    formats, model = formats_here(dtype), find_architecture(str(folder))
    lookup = SpeculativeConfig(method="ngram", num_speculative_tokens=LENGTH)
    held = look(Asked(str(folder), dtype, lookup, 4000, 200))
    assert held.weights == pytest.approx(formats.target_bytes(model), rel=NEAR)
    assert held.cache == 4000 * 2 * 2 * 2 * 64 * formats.kv_bytes
    assert (held.proposer_weights, held.proposer_cache) == (0, 0)
    assert held.sequences == 20
    assert 0 < held.drafting <= 20


def test_rows_that_a_head_in_16_bits_borrows_are_counted_as_the_target_in_float32_has_them(tmp_path: Path) -> None:
    vocabulary, drafted, hidden = 3000, 2500, WIDE["hidden_size"]
    config = LlamaConfig(**(SIZES | WIDE | {"vocab_size": vocabulary}))
    target, folder = tiny_model_folder(tmp_path / "target", config), tmp_path / "head"
    narrow_eagle(vocabulary, drafted, hidden).write(folder)
    asked = SpeculativeConfig(method="eagle", model=str(folder), adaptive=False)
    spec = parse_proposer(f"eagle:{folder}", draft_length=LENGTH, acceptance=None)
    planned = build_proposer(spec, find_architecture(str(target)), 1, formats_here("float32")).weight_bytes
    assert planned > 4 * drafted * hidden
    assert planned == pytest.approx(look(Asked(str(target), "float32", asked, 4000, 200)).proposer_weights, rel=NEAR)
    keeping = keeping_on(torch.device("cpu"), "float32")
    assert planned == read_head(asked, lambda line: None).needed(0, keeping, is_target_narrow=False).kept


def narrow_eagle(vocabulary: int, drafted: int, hidden: int) -> checkpoints.Files:
    """An EAGLE head in bfloat16 that drafts the first tokens of the vocabulary."""
    attention = {"q_proj": (hidden, hidden), "k_proj": (64, hidden), "v_proj": (64, hidden), "o_proj": (hidden, hidden)}
    shapes = {
        "fc.weight": (hidden, 2 * hidden),
        **{f"layers.0.self_attn.{name}.weight": shape for name, shape in attention.items()},
        **{f"layers.0.mlp.{name}_proj.weight": (64, hidden) for name in ("gate", "up")},
        "layers.0.mlp.down_proj.weight": (hidden, 64),
        "layers.0.post_attention_layernorm.weight": (hidden,),
    }
    sizes = {"hidden_size": hidden, "intermediate_size": 64, "vocab_size": vocabulary, "draft_vocab_size": drafted}
    heads = {"num_attention_heads": hidden // 64, "num_key_value_heads": 1}
    tensors = {name: tensor.bfloat16() for name, tensor in checkpoints.random_tensors(shapes).items()}
    tensors["d2t"] = torch.zeros(drafted, dtype=torch.int64)
    return checkpoints.Files(checkpoints.llama_config(**sizes, **heads), tensors)


@pytest.mark.model
@pytest.mark.patient
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("arm", ARMS)
def test_on_the_real_model_bytes_tokens_and_sequences_are_within_a_twentieth_of_the_plan(arm: str, dtype: str) -> None:
    room = Room(1024 * MIB, 512, dtype)
    plan, proposer = planned(arm, room), proposer_of(arm)
    tokens = plan.tokens
    held = look(Asked(room.model, dtype, proposer, tokens, room.context))
    if arm == "draft_model":  # the target of it is loaded in another process, and as large as the baseline's
        held = _with_target(held, look(Asked(room.model, dtype, None, tokens, room.context)))
    assert held.weights == pytest.approx(plan.weights, rel=NEAR)
    assert held.proposer_weights == pytest.approx(plan.proposer_weights, rel=NEAR)
    assert held.cache == pytest.approx(tokens * plan.target_cache.bytes_per_token, rel=NEAR)
    assert held.proposer_cache == pytest.approx(tokens * plan.proposer_cache.bytes_per_token, rel=NEAR)
    assert held.cache + held.proposer_cache == pytest.approx(room.cache_bytes, rel=NEAR)
    assert held.sequences == pytest.approx(plan.sequences(room.context), rel=NEAR)
    assert (held.drafting > 0) == (arm != BASELINE)


def _with_target(draft: Held, target: Held) -> Held:
    return Held(
        target.weights, target.cache, draft.proposer_weights, draft.proposer_cache, target.sequences, draft.drafting
    )


def test_the_table_has_two_lines_for_each_arm_and_all_processes_of_it() -> None:
    plan = MemoryPlan(400 * MIB, 100 * MIB, 0.0, 20 * MIB, KvCache(512.0, ((None, 2),)), NO_CACHE, LENGTH)
    row = Row("draft_model", plan, 1000, 3, Held(101 * MIB, 1000 * 1024, 19 * MIB, 0, 4, 2), (500 * MIB, 90 * MIB))
    head, rule, predicted, loaded = table([row])
    assert head.count("|") == rule.count("|") == predicted.count("|") == loaded.count("|")
    assert predicted == "| draft_model | predicted | 100.0 | 20.0 | 1,024 | 0 | 1,000 | 3 | – | – |"
    assert loaded == "|  | loaded | 101.0 | 19.0 | 1,024 | 0 | 1,000 | 4 | 2 | 500 + 90 |"


def test_every_arm_but_the_baseline_has_a_proposer_of_its_kind() -> None:
    for arm in ARMS:
        proposer = proposer_of(arm)
        assert (proposer is None) == (arm == BASELINE)
        assert proposer is None or proposer.method == arm

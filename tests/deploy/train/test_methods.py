"""Each kind of proposer: its files, and that it learns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from deploy.train.batches import plan_steps
from deploy.train.checkpoint import CheckpointFile
from deploy.train.loop import Plan, Trainer
from deploy.train.measuring import measure
from deploy.train.metrics_log import MetricsLog
from deploy.train.publish import publish, published
from deploy.train.trainee import Method
from deploy.train.vocabulary import DraftVocabulary
from fleet.config import SpeculativeConfig
from fleet.errors import ConfigError
from replicas.engine.sampling import Sampler
from replicas.heads.checkpoint import Checkpoint, read_checkpoint
from replicas.heads.loading import PublishedHead
from replicas.heads.warming import warm_up
from tests.deploy.train.tiny_target import (
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    KV_HEADS,
    LAYERS,
    METHODS,
    VOCABULARY,
    WIDTH,
    lesson_of,
    method_of,
)
from tests.fakes import ManualClock

DRAFTED = 120
Shapes = dict[str, list[int]]


def layer(prefix: str, norm: str, input_width: int) -> Shapes:
    return {
        f"{prefix}.self_attn.q_proj.weight": [HEADS * WIDTH, input_width],
        f"{prefix}.self_attn.k_proj.weight": [KV_HEADS * WIDTH, input_width],
        f"{prefix}.self_attn.v_proj.weight": [KV_HEADS * WIDTH, input_width],
        f"{prefix}.self_attn.o_proj.weight": [HIDDEN, HEADS * WIDTH],
        f"{prefix}.mlp.gate_proj.weight": [INTERMEDIATE, HIDDEN],
        f"{prefix}.mlp.up_proj.weight": [INTERMEDIATE, HIDDEN],
        f"{prefix}.mlp.down_proj.weight": [HIDDEN, INTERMEDIATE],
        f"{prefix}.{norm}.weight": [HIDDEN],
    }


def blocks(pattern: str) -> Shapes:
    return {
        f"{pattern.format(head)}.{part}": shape
        for head in range(3)
        for part, shape in (("weight", [HIDDEN, HIDDEN]), ("bias", [HIDDEN]))
    }


FILES: dict[str, Shapes] = {
    "draft_model": {
        **layer("model.layers.0", "post_attention_layernorm", HIDDEN),
        **layer("model.layers.1", "post_attention_layernorm", HIDDEN),
        "model.layers.0.input_layernorm.weight": [HIDDEN],
        "model.layers.1.input_layernorm.weight": [HIDDEN],
        "model.norm.weight": [HIDDEN],
        "d2t": [DRAFTED],
    },
    "eagle": {
        "fc.weight": [HIDDEN, 2 * HIDDEN],
        **layer("layers.0", "post_attention_layernorm", HIDDEN),
        "d2t": [DRAFTED],
    },
    "eagle3": {
        "fc.weight": [HIDDEN, 3 * HIDDEN],
        "midlayer.input_layernorm.weight": [HIDDEN],
        "midlayer.hidden_norm.weight": [HIDDEN],
        **layer("midlayer", "post_attention_layernorm", 2 * HIDDEN),
        "norm.weight": [HIDDEN],
        "lm_head.weight": [DRAFTED, HIDDEN],
        "d2t": [DRAFTED],
        "t2d": [VOCABULARY],
    },
    "medusa": {**blocks("{}.0.linear"), **{f"{head}.1.weight": [VOCABULARY, HIDDEN] for head in range(3)}},
    "medusa, cut": {
        **blocks("blocks.{}.layers.0"),
        **{f"lm_heads.{head}.weight": [DRAFTED, HIDDEN] for head in range(3)},
        "token_map": [DRAFTED],
    },
    "medusa, one head": {
        **blocks("blocks.{}.layers.0"),
        "lm_head.weight": [DRAFTED, HIDDEN],
        "token_map": [DRAFTED],
    },
}


def initial(kind: str, out: Path) -> tuple[Method, Checkpoint]:
    settings, method = method_of(kind, out)
    lesson = lesson_of(settings, method)
    return method, method.initial(lesson.target.weights, lesson.vocabulary)


@pytest.mark.parametrize("kind", METHODS)
def test_the_published_file_has_exactly_the_formats_keys_shapes_and_types(kind: str, tmp_path: Path) -> None:
    _, checkpoint = initial(kind, tmp_path)
    publish(checkpoint, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == FILES[kind]
    types = {"d2t": torch.int64, "t2d": torch.bool, "token_map": torch.int64}
    assert all(tensor.dtype == types.get(name, torch.bfloat16) for name, tensor in tensors.items())
    assert len({file.stat().st_mode for file in tmp_path.iterdir()}) == 1, "readable by the same people"


@pytest.mark.parametrize("kind", METHODS)
def test_the_published_file_is_read_back_as_the_same_network(kind: str, tmp_path: Path) -> None:
    settings, method = method_of(kind, tmp_path)
    lesson = lesson_of(settings, method)
    weights, vocabulary = lesson.target.weights, lesson.vocabulary
    checkpoint = method.initial(weights, vocabulary)
    for tensor in checkpoint.tensors.values():
        if tensor.is_floating_point():
            tensor.copy_(tensor.bfloat16())
    publish(checkpoint, tmp_path)
    batch = lesson.pack(lesson.taught[:2])
    noise = torch.Generator()
    kept = method.trainee(checkpoint, weights, vocabulary).losses(batch, noise.manual_seed(0)).total
    reread = method.trainee(published(tmp_path, weights.device), weights, vocabulary)
    assert torch.equal(reread.losses(batch, noise.manual_seed(0)).total, kept)


@pytest.mark.parametrize("kind", sorted(set(METHODS) - {"draft_model"}))
def test_a_published_head_is_one_that_serves(kind: str, tmp_path: Path) -> None:
    settings, method = method_of(kind, tmp_path)
    lesson = lesson_of(settings, method)
    target = lesson.target
    publish(method.initial(target.weights, lesson.vocabulary), tmp_path)
    config = SpeculativeConfig.model_validate({"method": method.name, "model": "head", "num_speculative_tokens": 3})
    head = PublishedHead(config, read_checkpoint(tmp_path))
    proposer, tree = head.on(target.model, "tiny", Sampler(VOCABULARY, frozenset()), ManualClock())
    warm_up(proposer, torch.ones(1, len(head.taps(LAYERS)) * HIDDEN), sequences=2, depth=tree.depth)
    assert tree.depth == 3
    assert proposer.state().out_of_memory == 0


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind == "eagle3" else kind for kind in METHODS]
)
def test_a_tiny_corpus_is_learnt_by_heart(kind: str, tmp_path: Path) -> None:
    settings, method = method_of(kind, tmp_path, evaluate_every=1000, checkpoint_every=1000)
    lesson = lesson_of(settings, method)
    few = lesson.taught[:2]
    weights = lesson.target.weights
    checkpoint = method.initial(weights, lesson.vocabulary)
    trainee = method.trainee(checkpoint, weights, lesson.vocabulary)
    steps = plan_steps([len(own.tokens) for own in few], settings.batch_tokens, 80, 0)
    plan = Plan(steps, lambda indexes: lesson.pack([few[index] for index in indexes]))
    log = MetricsLog(tmp_path / "metrics.jsonl")
    trainer = Trainer(trainee, checkpoint.tensors, plan, settings, CheckpointFile(tmp_path / "t" / "c.pt", {}))
    trainer.run(log, dict, lambda done, line: None)
    losses = [line["loss"] for line in log.lines() if "loss" in line]
    assert losses[-1] < 0.75 * losses[0]
    acceptance = measure(trainee, few, lesson.pack, settings.batch_tokens)
    assert acceptance.rounds > 0
    assert acceptance.by_position[0] > 0.9
    assert acceptance.mean_length > 3


def test_eagle3_names_its_taps_and_refuses_a_target_without_three(tmp_path: Path) -> None:
    method, checkpoint = initial("eagle3", tmp_path)
    assert checkpoint.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert method.taps(30) == (2, 15, 27, 30)
    with pytest.raises(ConfigError, match="6 layers"):
        method.taps(6)


def test_one_medusa_head_for_all_needs_a_draft_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--draft-vocab"):
        method_of("medusa", tmp_path, shared_head=True)


def test_a_draft_copies_evenly_spaced_layers_and_keeps_the_strongest_neurons(tmp_path: Path) -> None:
    settings, method = method_of("draft_model", tmp_path, layers=2, intermediate=24)
    lesson = lesson_of(settings, method)
    checkpoint = method.initial(lesson.target.weights, lesson.vocabulary)
    stored = load_file(lesson.target.weights.folder / "model.safetensors")
    for own, source in ((0, 0), (1, 7)):
        name = "self_attn.q_proj.weight"
        assert torch.equal(checkpoint.tensors[f"model.layers.{own}.{name}"], stored[f"model.layers.{source}.{name}"])
    assert checkpoint.config["intermediate_size"] == 24
    gate = checkpoint.tensors["model.layers.1.mlp.gate_proj.weight"]
    whole = stored["model.layers.7.mlp.gate_proj.weight"]
    rows = [(whole == row).all(1).nonzero().item() for row in gate]
    assert rows == sorted(set(rows))
    assert json.dumps(checkpoint.config)


@pytest.mark.parametrize(("changed", "complaint"), [({"layers": 9}, "s 8$"), ({"intermediate": 65}, "s 64$")])
def test_a_draft_cannot_be_larger_than_its_target(changed: dict[str, int], complaint: str, tmp_path: Path) -> None:
    settings, method = method_of("draft_model", tmp_path, **changed)
    lesson = lesson_of(settings, method)
    with pytest.raises(ConfigError, match=complaint):
        method.initial(lesson.target.weights, lesson.vocabulary)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_head_over_the_whole_vocabulary_has_no_map(kind: str, tmp_path: Path) -> None:
    settings, method = method_of(kind, tmp_path, draft_vocab=VOCABULARY + 1)
    lesson = lesson_of(settings, method)
    checkpoint = method.initial(lesson.target.weights, lesson.vocabulary)
    assert len(lesson.vocabulary) == VOCABULARY
    assert "d2t" not in checkpoint.tensors
    assert checkpoint.config.get("draft_vocab_size", VOCABULARY) == VOCABULARY


def test_an_eagle_head_learns_and_drafts_no_token_outside_its_vocabulary(tmp_path: Path) -> None:
    settings, method = method_of("eagle", tmp_path)
    lesson = lesson_of(settings, method)
    batch = lesson.pack(lesson.taught[:2])
    absent = sorted(set(range(VOCABULARY)) - set(batch.tokens.tolist()))
    vocabulary = DraftVocabulary(torch.tensor(absent), VOCABULARY)
    weights = lesson.target.weights
    trainee = method.trainee(method.initial(weights, vocabulary), weights, vocabulary)
    losses = trainee.losses(batch, torch.Generator())
    assert losses.parts["token"] == 0
    assert losses.parts["feature"] > 0
    assert not trainee.agreement(batch).any()

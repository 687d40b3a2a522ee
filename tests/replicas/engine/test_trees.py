"""Drafted trees: every branch computes what it would compute alone, and the verified one can be kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from replicas.engine.model import DecoderModel, load_model
from replicas.engine.packing import Segment
from tests.tiny_models import family_configs, tiny_model_folder

pytestmark = pytest.mark.usefixtures("way")

PROMPT = tuple(range(20, 32))
TREE = (40, 41, 42, 43, 44, 45, 46, 47)
PARENTS = (-1, -1, 0, 0, 2, 1, 4, 6)
DEEPEST = (0, 2, 4, 6, 7)


@pytest.fixture(params=sorted(family_configs()), scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("model"), family_configs()[request.param], is_varied=True)


def load(folder: Path, taps: tuple[int, ...] = ()) -> DecoderModel:
    return load_model(folder, dtype="float32", device="cpu", kv_tokens=200, taps=taps)


def branch(row: int) -> tuple[int, ...]:
    """The tree's rows from its first level down to `row`."""
    return (*branch(PARENTS[row]), row) if PARENTS[row] >= 0 else (row,)


def chain_logits(model: DecoderModel, rows: tuple[int, ...], following: tuple[int, ...] = ()) -> Tensor:
    """Logits after prompt, the named tokens of the tree and `following`, computed as one chain elsewhere."""
    tokens = (*PROMPT, *(TREE[row] for row in rows), *following)
    return model.forward([Segment(100, 0, tokens, 1)]).logits[0]


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("cached", [len(PROMPT) - 1, len(PROMPT)])
def test_each_branch_of_a_tree_computes_what_it_would_alone(folder: Path, cached: int) -> None:
    model = load(folder)
    model.forward([Segment(0, 0, PROMPT[:cached], 0)])
    tree = Segment(0, cached, PROMPT[cached:] + TREE, len(TREE), PARENTS)
    neighbour = Segment(60, 0, PROMPT[:3], 1)
    logits = model.forward([neighbour, tree]).logits[1:]
    for row in range(len(TREE)):
        assert_close(logits[row], chain_logits(model, branch(row)))


def test_a_kept_branch_is_cached_as_a_chain(folder: Path) -> None:
    model = load(folder)
    model.forward([Segment(0, 0, PROMPT, 0)])
    model.forward([Segment(0, len(PROMPT), TREE, 0, PARENTS)])
    model.keep(len(PROMPT), DEEPEST)
    after = model.forward([Segment(0, len(PROMPT) + len(DEEPEST), (50, 51), 1)]).logits[0]
    assert_close(after, chain_logits(model, DEEPEST, (50, 51)))


def test_keeping_a_branch_touches_no_neighbour(folder: Path) -> None:
    model = load(folder)
    model.forward([Segment(0, 0, PROMPT + TREE, 0, PARENTS), Segment(len(PROMPT + TREE), 0, PROMPT, 0)])
    model.keep(len(PROMPT), DEEPEST)
    after = model.forward([Segment(len(PROMPT + TREE), len(PROMPT), TREE[:1], 1)]).logits[0]
    assert_close(after, chain_logits(model, (0,)))


def test_a_chain_written_as_a_tree_is_the_chain(folder: Path) -> None:
    model = load(folder)
    chain = model.forward([Segment(0, 0, PROMPT, 4)]).logits
    tree = model.forward([Segment(50, 0, PROMPT, 4, (-1, 0, 1, 2))]).logits
    assert_close(tree, chain)


def test_taps_are_the_states_between_the_layers(folder: Path) -> None:
    model = load(folder, taps=(0, 2, 4))
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    with torch.inference_mode():
        states = plain(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
    features = model.forward([Segment(7, 0, PROMPT[:5], 0), Segment(50, 0, PROMPT, 1)]).features
    assert features is not None
    assert_close(features[5:], torch.cat([states[0][0], states[2][0], states[4][0]], dim=-1))
    assert_close(features[:5], features[5:10])


def test_the_head_turns_the_last_state_into_logits(folder: Path) -> None:
    model = load(folder, taps=(4,))
    forward = model.forward([Segment(0, 0, PROMPT, len(PROMPT))])
    assert forward.features is not None
    assert_close(model.head(forward.features), forward.logits)
    assert model.embedding.shape == (model.vocab_size, forward.features.shape[1])

"""Medusa heads in both published layouts, against their formula, and the trees that are drafted with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock, Mock

import pytest
import torch

from fleet.errors import ConfigError
from replicas.engine.features import Seen
from replicas.engine.sampling import Draw
from replicas.heads.candidates import CoupledPicker
from replicas.heads.checkpoint import read_checkpoint
from replicas.heads.medusa import MedusaHeads
from replicas.heads.medusa_proposer import MedusaProposer
from replicas.speculation.messages import Closing
from replicas.speculation.tree import Draft, Tree
from tests.fakes import ManualClock
from tests.replicas.heads.checkpoints import DRAFT_IDS, VOCABULARY, Files, medusa, medusa_converted
from tests.replicas.heads.heads_rig import GREEDY, SAMPLER, Story, features, shared
from tests.replicas.heads.reference import medusa_logits

UNSORTED = tuple(reversed(DRAFT_IDS))
LAYOUTS: dict[str, Callable[[], Files]] = {
    "published": medusa,
    "two-blocks": lambda: medusa(blocks=2),
    "converted": medusa_converted,
    "mapped": lambda: medusa_converted(rows=len(UNSORTED), token_map=UNSORTED),
    "mapped-full-rows": lambda: medusa_converted(token_map=UNSORTED),
    "one-output": lambda: medusa_converted(shared=True),
}


def heads_from(files: Files, folder: Path) -> MedusaHeads:
    return MedusaHeads(read_checkpoint(files.write(folder)), shared())


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_every_layout_gives_the_papers_logits(name: str, tmp_path: Path) -> None:
    files = LAYOUTS[name]()
    heads, states = heads_from(files, tmp_path), features(4, 16, seed=8)
    assert heads.count == 3, "counted from the file, whatever the config says"
    logits = heads(states, 3)
    expected = torch.stack([torch.stack([medusa_logits(files, head, state) for state in states]) for head in range(3)])
    torch.testing.assert_close(logits, expected.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (medusa().drop("0.0.linear.weight"), "holds no Medusa heads"),
        (medusa().drop("1.1.weight"), "no tensor '1.1.weight'"),
        (medusa_converted(rows=40), "its vocabulary is 40, that of tiny-target is 60"),
        (
            medusa_converted(rows=12, token_map=(*DRAFT_IDS[:-1], 60)),
            "'token_map' does not lead to 12 different tokens",
        ),
        (medusa_converted(rows=12, token_map=(*DRAFT_IDS[:-1], 3)), "'token_map' does not lead to 12 different tokens"),
    ],
)
def test_heads_of_another_target_are_refused_by_name(files: Files, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        heads_from(files, tmp_path)


def test_another_hidden_size_is_refused_by_name(tmp_path: Path) -> None:
    files = medusa()
    files.tensors["0.0.linear.weight"] = torch.ones(20, 20)
    with pytest.raises(ConfigError, match="its hidden size is 20, that of tiny-target is 16"):
        heads_from(files, tmp_path)


def test_a_tree_holds_each_heads_likeliest_tokens_below_every_branch(tmp_path: Path) -> None:
    files, tree = medusa(), Tree.of_paths([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]])
    proposer = MedusaProposer(heads_from(files, tmp_path), CoupledPicker(SAMPLER), tree, ManualClock())
    story = Story(proposer, 1, [5, 17, 8, 30], features(40, 16, seed=1))
    story.read(3)
    story.open()
    for committed in ((7,), (21, 4, 33)):
        state = story.features[len(story.tokens) - 2]
        best = [torch.argsort(medusa_logits(files, head, state), descending=True).tolist() for head in range(3)]
        expected = (*best[0][:3], best[1][0], best[1][1], best[1][0], best[2][0])
        assert story.draft() == Draft(expected, tree.parents)
        assert story.draft(1) == Draft(expected[:3], tree.parents[:3])
        story.commit(*committed)
    proposer.close(Closing((1, 99), "finished"))
    assert story.draft() == Draft()


def test_every_head_draws_with_the_noise_of_its_own_position(tmp_path: Path) -> None:
    sampling = replace(GREEDY, temperature=0.8, repetition_penalty=1.3, min_tokens=2)
    files = medusa()
    proposer = MedusaProposer(heads_from(files, tmp_path), CoupledPicker(SAMPLER), Tree.chain(3), ManualClock())
    story = Story(proposer, 1, [5, 17, 8, 30], features(40, 16, seed=1))
    story.read(3)
    story.open(sampling=sampling, prompt_length=3)
    expected: list[int] = []
    for head in range(3):
        logits = medusa_logits(files, head, story.features[2]).float()[None]
        draw = Draw(sampling, 0, [5, 17, 8], [30, *expected])
        expected.append(SAMPLER.sample(logits, [draw])[0].token_id)
    assert story.draft().token_ids == tuple(expected)


def test_a_cut_vocabulary_drafts_none_of_the_other_tokens(tmp_path: Path) -> None:
    files = medusa_converted(rows=len(UNSORTED), token_map=UNSORTED)
    proposer = MedusaProposer(
        heads_from(files, tmp_path), CoupledPicker(SAMPLER), Tree.of_counts([VOCABULARY]), ManualClock()
    )
    story = Story(proposer, 1, [5, 17, 8], features(40, 16, seed=1))
    story.read(2)
    story.open()
    assert sorted(story.draft().token_ids) == sorted(DRAFT_IDS)


def test_a_state_that_cannot_be_kept_for_want_of_memory_is_a_sequence_without_drafts(tmp_path: Path) -> None:
    proposer = MedusaProposer(heads_from(medusa(), tmp_path), CoupledPicker(SAMPLER), Tree.chain(3), ManualClock())
    story = Story(proposer, 1, [5, 17, 8], features(40, 16, seed=1))
    row = Mock(clone=Mock(side_effect=torch.OutOfMemoryError("no more")))
    proposer.read([Seen(1, 0, MagicMock(__getitem__=Mock(return_value=row)), (17, 8))])
    story.open()
    assert story.draft() == Draft()
    assert proposer.state().out_of_memory == 1

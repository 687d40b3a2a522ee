"""Whatever a request asks for and whatever the target's states are, a head answers with tokens or with none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fleet.generation import SamplingParams
from replicas.heads.candidates import CoupledPicker, IndependentPicker, Picker
from replicas.heads.checkpoint import read_checkpoint
from replicas.heads.eagle_proposer import EagleProposer
from replicas.heads.medusa import MedusaHeads
from replicas.heads.medusa_proposer import MedusaProposer
from replicas.heads.warming import ReadingProposer
from replicas.speculation.tree import Tree
from tests.fakes import ManualClock
from tests.replicas.engine.requests import mixed_requests
from tests.replicas.heads.checkpoints import VOCABULARY, eagle3, medusa
from tests.replicas.heads.heads_rig import SAMPLER, Story, features, head_from, proposer_on, shared

TREE = Tree.of_counts([3, 2, 1])
EXTREME = [
    SamplingParams(seed=2**64 - 1, max_tokens=9, temperature=1e-4, min_p=1.0, top_k=1, top_p=1e-6),
    SamplingParams(seed=0, max_tokens=9, temperature=2.0, logit_bias=tuple((n, -100.0) for n in range(VOCABULARY))),
    SamplingParams(seed=0, max_tokens=9, repetition_penalty=2.0, presence_penalty=-2.0, frequency_penalty=2.0),
    SamplingParams(seed=0, max_tokens=9, min_tokens=9, stop_token_ids=tuple(range(VOCABULARY))),
]


def eagle_with(picker: Picker, folder: Path) -> EagleProposer:
    proposer = proposer_on(head_from(eagle3(), folder), TREE)
    proposer._picker = picker
    return proposer


def medusa_with(picker: Picker, folder: Path) -> MedusaProposer:
    heads = MedusaHeads(read_checkpoint(medusa().write(folder)), shared())
    return MedusaProposer(heads, picker, TREE, ManualClock())


def states(fill: float | None, width: int) -> Tensor:
    return features(40, width, seed=1) if fill is None else torch.full((40, width), fill)


Make = Callable[[Picker, Path], ReadingProposer]


@pytest.mark.parametrize("fill", [None, 0.0, 1e30, torch.inf, torch.nan])
@pytest.mark.parametrize("picker", [CoupledPicker(SAMPLER), IndependentPicker(SAMPLER)], ids=["coupled", "judged"])
@pytest.mark.parametrize(("make", "width"), [(eagle_with, 48), (medusa_with, 16)], ids=["eagle3", "medusa"])
def test_no_request_and_no_state_of_the_target_makes_a_head_raise(
    make: Make, width: int, picker: Picker, fill: float | None, tmp_path: Path
) -> None:
    proposer = make(picker, tmp_path)
    drafted = []
    for number, sampling in enumerate([*(each.sampling for each in mixed_requests()), *EXTREME], start=1):
        story = Story(proposer, number, [5, 17, 8, 30], states(fill, width))
        story.read(3)
        story.open(sampling=sampling, prompt_length=2)
        for token in (7, 21):
            drafted.append(story.draft())
            story.commit(token)
    assert all(draft.is_sound(VOCABULARY) for draft in drafted)
    assert any(drafted) == (fill in (None, 0.0, 1e30))

"""Drafts that heads draw for the rejection rule: answers follow the target's distribution, whatever the tree."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fleet.generation import SamplingParams
from replicas.engine.cut_vocabulary import offset_vocabulary
from replicas.engine.features import Seen
from replicas.engine.judging import judged_block
from replicas.engine.sampling import Draw
from replicas.heads.cache import CachedRows, CacheShape, HeadCache
from replicas.heads.candidates import IndependentPicker
from replicas.heads.eagle_proposer import DraftShape, EagleProposer
from replicas.heads.medusa_proposer import MedusaProposer
from replicas.heads.warming import ReadingProposer
from replicas.speculation.messages import Opening, SequenceVerdict
from replicas.speculation.proposer import Want
from replicas.speculation.tree import ROOT, Draft, Tree
from tests.fakes import ManualClock
from tests.replicas.engine.test_coupling import (
    DRAFT,
    LENGTH,
    PLAIN,
    PROMPT,
    SAMPLER,
    TARGET,
    TRUNCATED,
    VOCABULARY,
    exact,
    fits,
    rows,
)

SEEDS = range(400)
PICKER = IndependentPicker(SAMPLER)
FULL = Tree.of_counts((2, 2, 1))
UNEVEN = Tree.of_paths([[0], [1], [2], [0, 0], [2, 0], [2, 1], [2, 1, 0]])
BELOW_THE_SECOND = Tree.of_paths([[0], [1], [1, 0], [1, 0, 0]])


class TableEagle:
    """A state is the last two tokens: the head is the table of a draft model."""

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def __call__(self, token_ids: Tensor, states: Tensor, rows: CachedRows) -> Tensor:
        return torch.stack((states[:, 1], token_ids), dim=1)

    def logits(self, states: Tensor) -> Tensor:
        return torch.from_numpy(DRAFT[states[:, 0].numpy(), states[:, 1].numpy()])


class CutEagle(TableEagle):
    """A token that the target may well say cannot be drafted, and the rows are in an order of their own."""

    vocabulary = offset_vocabulary(torch.tensor([2, 2, -2]), VOCABULARY, "d2t")

    def logits(self, states: Tensor) -> Tensor:
        return self.vocabulary.everywhere(super().logits(states)[:, self.vocabulary.token_ids])


class TableMedusa:
    """Every head is that table, which is wrong for what lies further ahead, as real heads are."""

    def __call__(self, states: Tensor, count: int) -> Tensor:
        return TableEagle().logits(states).expand(count, -1, -1)


class FlatMedusa:
    """The first head is nearly sure of a token, mostly wrongly; the others know nothing."""

    def __call__(self, states: Tensor, count: int) -> Tensor:
        logits = torch.zeros((count, len(states), VOCABULARY))
        logits[0, :, 0] = 4.5
        return logits


def eagle(tree: Tree, network: TableEagle | None = None) -> ReadingProposer:
    cache = HeadCache(CacheShape(1, 100 * len(SEEDS), 1), dtype=torch.float32, device=torch.device("cpu"))
    return EagleProposer(network or TableEagle(), cache, PICKER, DraftShape(tree, 100), ManualClock())


def cut_eagle(tree: Tree) -> ReadingProposer:
    return eagle(tree, CutEagle())


def medusa(tree: Tree) -> ReadingProposer:
    return MedusaProposer(TableMedusa(), PICKER, tree, ManualClock())


@dataclass
class Speaker:
    """One sequence with a seed of its own, drafted for and judged step by step."""

    proposer: ReadingProposer
    target: np.ndarray
    sampling: SamplingParams
    output: list[int] = field(default_factory=list)
    accepted: int = 0

    @property
    def id(self) -> int:
        return self.sampling.seed

    @property
    def text(self) -> list[int]:
        return [*PROMPT, *self.output]

    def open(self) -> None:
        self._read(0)
        self.proposer.open(Opening(self.id, 1, PROMPT, len(PROMPT), self.sampling, 0, 3))

    def step(self, draft: Draft) -> None:
        assert draft.is_sound(VOCABULARY)
        branches = [[*self.output, *draft.branch(node)] for node in range(ROOT, len(draft))]
        logits = torch.cat([rows(self.target, [*PROMPT, *branch], 1) for branch in branches])
        block = judged_block(SAMPLER, draft, logits, [Draw(self.sampling, 0, PROMPT, branch) for branch in branches])
        base = len(self.text)
        self.output += block.token_ids
        self.accepted += len(block.path)
        self._read(base - 1)
        self.proposer.settle([SequenceVerdict(self.id, 1, base, len(block.path), block.token_ids, 3)])

    def _read(self, first: int) -> None:
        """Show the tokens from a place on that have one after them."""
        text = [0, *self.text]
        pairs = torch.tensor([[text[place], text[place + 1]] for place in range(first, len(text) - 2)])
        self.proposer.read([Seen(self.id, first, pairs, tuple(text[first + 2 :]))])


def speak(
    proposer: ReadingProposer, target: np.ndarray, sampling: SamplingParams, seeds: range = SEEDS
) -> list[Speaker]:
    speakers = [Speaker(proposer, target, replace(sampling, seed=seed)) for seed in seeds]
    for speaker in speakers:
        speaker.open()
    while unfinished := [speaker for speaker in speakers if len(speaker.output) < LENGTH]:
        proposals = proposer.propose([Want(speaker.id, 1, len(speaker.text), 3) for speaker in unfinished])
        for speaker in unfinished:
            proposal = proposals[speaker.id]
            speaker.step(Draft(proposal.token_ids, proposal.parents, proposal.distributions))
    return speakers


def heard(speakers: list[Speaker]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(speaker.output[:LENGTH]) for speaker in speakers)


@pytest.mark.parametrize("seeds", [SEEDS[:150], pytest.param(SEEDS, marks=pytest.mark.slow)], ids=["few", "all"])
@pytest.mark.parametrize(
    ("head", "tree", "sampling"),
    [
        (eagle, FULL, TRUNCATED),
        (eagle, Tree.chain(3), PLAIN),
        (cut_eagle, FULL, TRUNCATED),
        (cut_eagle, Tree.chain(3), PLAIN),
        (medusa, UNEVEN, TRUNCATED),
    ],
    ids=["eagle-tree", "eagle-chain", "cut-eagle-tree", "cut-eagle-chain", "medusa-tree"],
)
def test_answers_follow_the_targets_distribution(
    head: Callable[[Tree], ReadingProposer], tree: Tree, sampling: SamplingParams, seeds: range
) -> None:
    speakers = speak(head(tree), TARGET, sampling, seeds)
    assert fits(heard(speakers), exact(sampling), len(speakers))
    assert sum(speaker.accepted for speaker in speakers) > 0.5 * len(speakers)


def test_no_two_levels_of_a_branch_share_their_noise() -> None:
    """Below the second guess at the first token, where the first guess has nothing below it."""
    speakers = speak(
        MedusaProposer(FlatMedusa(), PICKER, BELOW_THE_SECOND, ManualClock()), np.zeros_like(TARGET), PLAIN
    )
    uniform = dict.fromkeys(itertools.product(range(VOCABULARY), repeat=LENGTH), VOCABULARY**-LENGTH)
    assert fits(heard(speakers), uniform, len(speakers))

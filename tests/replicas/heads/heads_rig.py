"""A head on a target that is only embedding and output matrix, fed with random features."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fleet.generation import SamplingParams
from replicas.engine.features import Seen
from replicas.engine.sampling import Sampler
from replicas.heads.cache import CacheShape, HeadCache
from replicas.heads.candidates import CoupledPicker
from replicas.heads.checkpoint import read_checkpoint
from replicas.heads.eagle import EagleHead
from replicas.heads.eagle3 import Eagle3Head, eagle3_taps
from replicas.heads.eagle_proposer import DraftShape, EagleProposer
from replicas.heads.target import Shared
from replicas.heads.warming import ReadingProposer
from replicas.speculation.messages import Opening, SequenceVerdict
from replicas.speculation.proposer import Want
from replicas.speculation.tree import Draft, Tree
from tests.fakes import ManualClock
from tests.replicas.heads.checkpoints import LAYERS, VOCABULARY, Files
from tests.replicas.heads.reference import target_embedding, target_head

GREEDY = SamplingParams(seed=3, max_tokens=500, temperature=0.0)
SAMPLER = Sampler(VOCABULARY, frozenset({2}))


def shared() -> Shared:
    weight = target_head()
    return Shared(
        "tiny-target",
        LAYERS,
        target_embedding(),
        lambda hidden: hidden @ weight.T,
        lambda token_ids: lambda hidden: hidden @ weight[token_ids].T,
    )


def head_from(files: Files, folder: Path) -> EagleHead | Eagle3Head:
    checkpoint = read_checkpoint(files.write(folder))
    if "lm_head.weight" in files.tensors:
        return Eagle3Head(checkpoint, shared(), taps=eagle3_taps(checkpoint, LAYERS))
    return EagleHead(checkpoint, shared())


def proposer_on(
    head: EagleHead | Eagle3Head, tree: Tree, *, kv_tokens: int = 2000, context: int = 1000
) -> EagleProposer:
    layer = head.config
    cache = HeadCache(
        CacheShape(layer.kv_heads, kv_tokens, layer.head_width, layer.window),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    return EagleProposer(head, cache, CoupledPicker(SAMPLER), DraftShape(tree, context), ManualClock())


def features(count: int, width: int, seed: int) -> Tensor:
    return torch.randn((count, width), generator=torch.Generator().manual_seed(seed))


class Story:
    """One sequence told to a proposer as the engine would: features first, then what was committed."""

    def __init__(self, proposer: ReadingProposer, sequence_id: int, tokens: list[int], features: Tensor) -> None:
        """`features` are those of all tokens that will ever be committed, by position."""
        self.proposer = proposer
        self.sequence_id = sequence_id
        self.tokens = tokens
        self.features = features
        self.read_to = 0
        self.epoch = 1

    def read(self, upto: int) -> None:
        """Show the features of tokens below `upto`."""
        begin, self.read_to = self.read_to, upto
        chunk = self.features[begin:upto].clone()
        self.proposer.read([Seen(self.sequence_id, begin, chunk, tuple(self.tokens[begin + 1 : upto + 1]))])
        chunk.fill_(torch.nan)  # the engine's next step overwrites it

    def open(self, *, sampling: SamplingParams = GREEDY, prompt_length: int | None = None) -> None:
        prompt = len(self.tokens) if prompt_length is None else prompt_length
        self.proposer.open(Opening(self.sequence_id, self.epoch, tuple(self.tokens), prompt, sampling, 0, 4))

    def commit(self, *tokens: int, next_draft_length: int = 4) -> None:
        base = len(self.tokens)
        self.tokens += tokens
        self.read(len(self.tokens) - 1)
        self.proposer.settle([SequenceVerdict(self.sequence_id, self.epoch, base, 0, tokens, next_draft_length)])

    def want(self, depth: int) -> Want:
        return Want(self.sequence_id, self.epoch, len(self.tokens), depth)

    def draft(self, depth: int = 10) -> Draft:
        proposal = self.proposer.propose([self.want(depth)]).get(self.sequence_id)
        return Draft(proposal.token_ids, proposal.parents) if proposal else Draft()

"""A head's first drafts, made before any request: kernels are built and memory is touched while nobody waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from fleet.generation import SamplingParams
from replicas.engine.features import FeatureReader, Seen
from replicas.speculation.messages import Closing, Opening
from replicas.speculation.proposer import Proposer, Want

EPOCH = 1
PROMPT_TOKENS = 16
NO_TOKEN = 0


class ReadingProposer(Proposer, FeatureReader, Protocol):
    """A proposer that drafts from the target's features."""


def warm_up(proposer: ReadingProposer, features: Tensor, *, sequences: int, depth: int) -> None:
    """Draft for one sequence, then for all that can run at once, and forget them.

    `features` is any row of the target's, [1, width]. Where the head has no room for that many, it drafts for fewer.
    """
    for count in sorted({1, sequences}):
        _draft(proposer, features, range(-count, 0), depth)


def _draft(proposer: ReadingProposer, features: Tensor, sequence_ids: Sequence[int], depth: int) -> None:
    """Ids below 0 belong to no sequence of the engine."""
    prompt = (NO_TOKEN,) * (PROMPT_TOKENS + 1)
    sampling = SamplingParams(seed=0, max_tokens=depth + 1, temperature=0.0)
    rows = features.expand(PROMPT_TOKENS, -1)
    proposer.read([Seen(sequence_id, 0, rows, prompt[1:]) for sequence_id in sequence_ids])
    for sequence_id in sequence_ids:
        proposer.open(Opening(sequence_id, EPOCH, prompt, len(prompt), sampling, 0, depth))
    proposer.propose([Want(sequence_id, EPOCH, len(prompt), depth) for sequence_id in sequence_ids])
    proposer.close(Closing(tuple(sequence_ids), "warm-up"))

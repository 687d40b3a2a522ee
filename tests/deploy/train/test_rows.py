"""Training sees what serving sees: every row's chain beside the same chain run through the serving cache."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from deploy.train.batches import Batch, packed
from deploy.train.dialogues import Example
from deploy.train.eagle import EagleTrainee
from deploy.train.eagle3 import Eagle3Trainee
from deploy.train.medusa import MedusaTrainee
from deploy.train.rows import ChainRows
from deploy.train.target import TargetWeights
from replicas.heads.cache import CachedRows, CacheShape, HeadCache, Span
from replicas.heads.eagle import EagleHead
from replicas.heads.eagle3 import Eagle3Head, eagle3_taps
from replicas.heads.medusa import MedusaHeads
from replicas.heads.target import Shared
from tests.deploy.train.tiny_target import HIDDEN, KV_HEADS, LAYERS, VOCABULARY, WIDTH, lesson_of, method_of

DEPTH = 3
LENGTHS = (7, 4)


Trainee = EagleTrainee | Eagle3Trainee


def shared(weights: TargetWeights) -> Shared:
    return Shared("tiny", LAYERS, weights.embedding, weights.logits, lambda ids: partial(weights.logits, rows=ids))


def both_of(kind: str, tmp_path: Path) -> tuple[Trainee, EagleHead | Eagle3Head]:
    """A head as it is trained and as it is served, of the same tensors."""
    settings, method = method_of(kind, tmp_path)
    lesson = lesson_of(settings, method)
    weights = lesson.target.weights
    checkpoint = method.initial(weights, lesson.vocabulary)
    trainee = method.trainee(checkpoint, weights, lesson.vocabulary)
    assert isinstance(trainee, Trainee)
    if kind == "eagle":
        return trainee, EagleHead(checkpoint, shared(weights))
    return trainee, Eagle3Head(checkpoint, shared(weights), taps=eagle3_taps(checkpoint, LAYERS))


def batch_of(width: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, sum(LENGTHS), np.int32)
    examples = [Example(own, 1, False) for own in np.split(tokens, [LENGTHS[0]])]
    return packed(examples, torch.randn(sum(LENGTHS), width, generator=generator), torch.device("cpu"))


def served_chain(head: EagleHead | Eagle3Head, tokens: Tensor, fused: Tensor, row: int) -> list[Tensor]:
    """States of the tokens drafted behind a row, run one by one; the true tokens stand in for the drafted ones."""
    cache = HeadCache(CacheShape(KV_HEADS, 64, WIDTH), dtype=torch.float32, device=torch.device("cpu"))
    start = cache.place(0, 0, row + 1 + DEPTH)
    assert start is not None
    known = CachedRows(cache, [Span(start, 0, row + 1)], range(row + 1))
    state = head(tokens[1 : row + 2], fused[: row + 1], known)[-1:]
    states = [state]
    for step in range(1, min(DEPTH, len(tokens) - 1 - row)):
        rows = CachedRows(cache, [Span(start, row + step, 1)], [row + step])
        state = head(tokens[row + 1 + step : row + 2 + step], state, rows)
        states.append(state)
    return states


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@torch.no_grad()
def test_every_chain_is_the_one_that_serving_would_run(kind: str, tmp_path: Path) -> None:
    trainee, head = both_of(kind, tmp_path)
    batch = batch_of(HIDDEN if kind == "eagle" else 3 * HIDDEN)
    rows = ChainRows(batch)
    states = trainee.fuse(batch.states) if isinstance(trainee, Eagle3Trainee) else batch.states
    passes = []
    for step in range(DEPTH):
        states = trainee.advance(batch.tokens[batch.ahead(1 + step)], states, rows)
        passes.append(states)
    start = 0
    for length in LENGTHS:
        own = slice(start, start + length)
        fused = head.fuse(batch.states[own])
        for row in range(length - 1):
            for step, expected in enumerate(served_chain(head, batch.tokens[own], fused, row)):
                torch.testing.assert_close(passes[step][start + row], expected[0], atol=1e-4, rtol=1e-4)
        start += length


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@torch.no_grad()
def test_a_head_drafts_the_tokens_that_serving_would_draft(kind: str, tmp_path: Path) -> None:
    trainee, head = both_of(kind, tmp_path)
    states = torch.randn(9, HIDDEN, generator=torch.Generator().manual_seed(1))
    served = head.logits(states)
    drafted = served.isfinite().nonzero()[:, 1].view(9, -1)
    torch.testing.assert_close(trainee.draft_logits(states), served.gather(1, drafted), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["medusa", "medusa, cut", "medusa, one head"])
@torch.no_grad()
def test_medusa_heads_draft_the_tokens_that_serving_would_draft(kind: str, tmp_path: Path) -> None:
    settings, method = method_of(kind, tmp_path)
    lesson = lesson_of(settings, method)
    weights = lesson.target.weights
    checkpoint = method.initial(weights, lesson.vocabulary)
    generator = torch.Generator().manual_seed(1)
    for name, tensor in checkpoint.tensors.items():
        if name != "token_map":
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    trainee = method.trainee(checkpoint, weights, lesson.vocabulary)
    assert isinstance(trainee, MedusaTrainee)
    heads = MedusaHeads(checkpoint, shared(weights))
    states = torch.randn(5, HIDDEN, generator=generator)
    for head, served in enumerate(heads(states, 3)):
        drafted = served.isfinite().nonzero()[:, 1].view(5, -1)
        torch.testing.assert_close(trainee.draft_logits(head, states), served.gather(1, drafted), atol=1e-3, rtol=1e-4)

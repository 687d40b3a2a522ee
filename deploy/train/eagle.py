"""How is an EAGLE-1 head trained? It regresses the target's next feature, and the token that follows from it.

Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", arXiv:2401.15077, section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from deploy.train.batches import Batch
from deploy.train.network import DraftLayer, linear, trainable
from deploy.train.rows import ChainRows
from deploy.train.settings import EagleSettings
from deploy.train.target import TargetWeights
from deploy.train.trainee import (
    Losses,
    chain_agreement,
    distillation,
    head_config,
    layer_shapes,
    mean,
    random_tensors,
    uniform_noise,
)
from deploy.train.vocabulary import DraftVocabulary
from replicas.engine.cut_vocabulary import DRAFT_TO_TARGET
from replicas.heads.checkpoint import Checkpoint

PREFIX = "layers.0"


class Eagle:
    """Published as EAGLE-1 files are, without `embed_tokens`, which is the target's, and with `d2t`."""

    name = "eagle"

    def __init__(self, settings: EagleSettings) -> None:
        self._settings = settings

    def taps(self, layers: int) -> tuple[int, ...]:
        return (layers,)

    def vocabulary_size(self, vocab_size: int) -> int:
        return min(self._settings.draft_vocab, vocab_size)

    def initial(self, weights: TargetWeights, vocabulary: DraftVocabulary) -> Checkpoint:
        config = head_config(weights, self._settings) | {"bias": False}
        hidden = config["hidden_size"]
        shapes = {"fc.weight": (hidden, 2 * hidden), **layer_shapes(PREFIX, config, hidden)}
        tensors = random_tensors(shapes, self._settings.seed, weights.device)
        if len(vocabulary) < vocabulary.vocab_size:
            config["draft_vocab_size"] = len(vocabulary)
            tensors[DRAFT_TO_TARGET] = vocabulary.d2t.cpu()
        return Checkpoint(self.name, config, tensors)

    def trainee(self, checkpoint: Checkpoint, weights: TargetWeights, vocabulary: DraftVocabulary) -> EagleTrainee:
        return EagleTrainee(checkpoint, weights, vocabulary, self._settings)


class EagleTrainee:
    """A `Trainee`."""

    def __init__(
        self, checkpoint: Checkpoint, weights: TargetWeights, vocabulary: DraftVocabulary, settings: EagleSettings
    ) -> None:
        self.depth = settings.depth
        self._own = trainable(checkpoint)
        self._layer = DraftLayer(self._own, PREFIX, checkpoint.config)
        self._weights = weights
        self._vocabulary = vocabulary
        self._settings = settings

    def parameters(self) -> Iterator[nn.Parameter]:
        return iter(self._own.values())

    def advance(self, tokens: Tensor, states: Tensor, rows: ChainRows) -> Tensor:
        """The predicted features of tokens int64 [n], from the features [n, hidden] before them."""
        fused = linear(self._own, "fc", torch.cat((self._weights.embedding[tokens], states), dim=-1))
        return self._layer(fused, fused, rows)

    def draft_logits(self, states: Tensor) -> Tensor:
        """The target's head on features [n, hidden], over the draft vocabulary alone: [n, draft vocabulary]."""
        return self._weights.logits(states, self._vocabulary.target_ids)

    def losses(self, batch: Batch, noise: torch.Generator) -> Losses:
        """L = L_reg + w · L_cls: smooth L1 of the feature, cross-entropy of the token (section 3.2; w = 0.1 there).

        The cross-entropy is that over the draft vocabulary: rows whose next token cannot be drafted have none.
        """
        features = batch.states + uniform_noise(batch.states, self._settings.noise, noise)
        following, taught = batch.ahead(1), batch.is_taught_ahead(1)
        predicted = self.advance(batch.tokens[following], features, ChainRows(batch))
        truth = batch.states[following]
        regression = mean(functional.smooth_l1_loss(predicted[taught], truth[taught], reduction="none"))
        drafted = taught & self._vocabulary.t2d[batch.tokens[batch.ahead(2)]]
        tokens = mean(distillation(self.draft_logits(predicted[drafted]), self.draft_logits(truth[drafted])))
        total = regression + self._settings.token_weight * tokens
        return Losses(total, {"feature": regression, "token": tokens})

    def agreement(self, batch: Batch) -> Tensor:
        rows = ChainRows(batch)
        return chain_agreement(
            batch,
            self.depth,
            batch.states,
            lambda tokens, states: self.advance(tokens, states, rows),
            lambda states: self._vocabulary.target_ids[self.draft_logits(states).argmax(-1)],
        )

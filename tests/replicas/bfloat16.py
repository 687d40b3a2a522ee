"""Computing in bfloat16 on a CPU as a GPU does: activations, products and cache, whatever the machine would rather."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from fleet.generation import GenerationRequest
from replicas.engine import linear, model
from replicas.engine.footprint import Layout
from replicas.engine.model import DecoderModel
from replicas.engine.packing import Segment
from tests.replicas.shipped import forced_logits, gaps

MARGIN = 2.0
"""Rows of a step come in more ways than the two that are compared."""


def compute_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither widen a model's numbers nor lay its layers out for kernels that sum in float32."""
    for module in (linear, model):
        monkeypatch.setattr(module, "compute_dtype", lambda dtype, device: getattr(torch, dtype))
    monkeypatch.setattr(linear, "layout_on", lambda device, dtype: Layout.PLAIN)


def assert_is_bfloat16(loaded: DecoderModel) -> None:
    """Its embedding is, and so is what the output layer gave: each logit is a bfloat16."""
    logits = forced_logits(loaded, (3, 4, 5), (6, 7))
    assert loaded.embedding.dtype == torch.bfloat16
    assert torch.equal(logits, logits.bfloat16().float())


@torch.inference_mode()
def stepwise_logits(loaded: DecoderModel, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    """As `forced_logits`, but one token at a time, as plain decoding does."""
    rows = [loaded.forward([Segment(0, 0, tuple(prompt), 1)]).logits]
    for index, token in enumerate(tokens[:-1]):
        rows.append(loaded.forward([Segment(0, len(prompt) + index, (token,), 1)]).logits)
    return torch.cat(rows)


class NearTies:
    """How far a token may be from the best: twice what the same token's logits differ by between two ways of running
    the same tokens, neither of which speculates. Two rows off by `d` each can swap logits that are 2·d apart."""

    def __init__(self, loaded: DecoderModel, answered: Sequence[tuple[GenerationRequest, Sequence[int]]]) -> None:
        """Measured on plain answers."""
        self._model = loaded
        rows = [
            (
                stepwise_logits(loaded, each.prompt_token_ids, tokens),
                forced_logits(loaded, each.prompt_token_ids, tokens),
            )
            for each, tokens in answered
        ]
        self.noise = max(float((one - whole).abs().max()) for one, whole in rows)
        self.most = 2 * MARGIN * self.noise

    def farthest(self, request: GenerationRequest, tokens: Sequence[int]) -> float:
        """The largest gap of an answer's tokens, the answer being given to the model."""
        return float(gaps(forced_logits(self._model, request.prompt_token_ids, tokens), tokens).max())

"""Runs a step of few rows on a CPU: the products by the library, all that lies between them by compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from replicas.engine.attention import StepAttention
from replicas.engine.decoder import Decoder, States, Taps
from replicas.engine.fused import kernels
from replicas.engine.fused.kernels import Floats, Integers
from replicas.engine.fused.view import View, view_of
from replicas.engine.kv_arena import KvArena
from replicas.engine.linear import ROWS_MULTIPLE, Linear
from replicas.engine.packing import Packing
from replicas.engine.span import Span
from replicas.engine.weights import LayerWeights

MOST_ROWS = 60
"""Of a step: a multiple of ROWS_MULTIPLE, and a row's sight has 64 bits. Beyond it torch's operations are as fast."""
KERNEL_CHANNELS = 2**20
"""Of keys that the heads of a span's rows see: what the attention kernel, on one core, does in the time that launching
torch's operations takes. With more, torch's products on all cores are faster."""
ROWS_FOR_GATHERING = 2
"""Torch copies the keys and values of several spans side by side first, and meanwhile the kernel does so many rows."""


def can_fuse(decoder: Decoder) -> bool:
    """Whether the kernels compute what this decoder does: one like Llama's, in float32 on a CPU."""
    config, embedding = decoder.config, decoder.embedding
    is_like_llama = not (config.is_gemma or config.has_qk_norm or config.attention_softcap)
    return is_like_llama and config.activation == "silu" and embedding.is_cpu and embedding.dtype == torch.float32


@dataclass(frozen=True, slots=True)
class _Step:
    """What all layers of a step share."""

    rows: int
    slots: Integers
    rotations: list[Floats]
    """By layer: `[rows, head_dim]`, the cosine and sine of each pair of channels."""
    views: list[View]
    """By layer; none where `attention` is torch's."""
    attention: StepAttention | None
    """Torch's, where the step sees more than the kernel is for."""


@dataclass(frozen=True, slots=True)
class _Product:
    """What a linear layer made, but for the factor `scale`."""

    tensor: Tensor
    scale: float

    @property
    def rows(self) -> Floats:
        rows: Floats = self.tensor.numpy()
        return rows


class _Rows:
    """Room for a step's rows, as torch and as NumPy see it."""

    def __init__(self, width: int) -> None:
        self.tensor = torch.zeros(MOST_ROWS, width)
        self.array: Floats = self.tensor.numpy()

    def through(self, layer: Linear, rows: int) -> _Product:
        """The layer's product with the first `rows`, and with some behind them where it wants a multiple."""
        padded = self.tensor[: rows + -rows % ROWS_MULTIPLE]
        return _Product(layer.scaled(padded), layer.unscale)


class FusedSteps:
    """The steps of one decoder and its arena. Whatever a layer has between its products lies in the same memory."""

    def __init__(self, decoder: Decoder, arena: KvArena) -> None:
        config = decoder.config
        self._decoder = decoder
        self._config = config
        self._arena = arena
        self._cached: list[Floats] = [*arena.memory.numpy()]
        """By layer."""
        self._stream, self._normed = _Rows(config.hidden_size), _Rows(config.hidden_size)
        self._attended = _Rows(config.num_attention_heads * config.head_dim)
        self._gated = _Rows(config.intermediate_size)
        self._norms = [(layer.attention_norm.numpy(), layer.mlp_norm.numpy()) for layer in decoder.layers]
        most_seen = arena.memory.shape[2] + kernels.BLOCK
        self._mixed = np.empty((kernels.HEADS, config.head_dim), dtype=np.float32)
        self._scores = np.empty((kernels.HEADS, most_seen), dtype=np.float32)
        self._words = np.empty(max(most_seen, config.intermediate_size), dtype=np.int32)

    def run(self, packing: Packing) -> States | None:
        """What the layers make of the packed tokens, valid until the next step; None where the step is too large."""
        if len(packing.tokens) > MOST_ROWS:
            return None
        step = self._begun(packing)
        stream = self._stream.tensor[: step.rows]
        taps = Taps(self._decoder.taps, stream)
        update = _Product(self._stream.tensor, 0.0)
        for index, (layer, norms) in enumerate(zip(self._decoder.layers, self._norms, strict=True)):
            self._add_and_norm(update, norms[0], step)
            taps.take(index, stream)
            update = self._attended_to(index, layer, step)
            self._add_and_norm(update, norms[1], step)
            update = self._gated_mlp(layer, step)
        stream.add_(update.tensor[: step.rows], alpha=update.scale)
        return self._decoder.states(stream, taps)

    def _begun(self, packing: Packing) -> _Step:
        """Embed the tokens, and settle what is the same for all layers of a kind."""
        decoder, rows = self._decoder, len(packing.tokens)
        torch.index_select(decoder.embedding, 0, torch.tensor(packing.tokens), out=self._stream.tensor[:rows])
        turned = decoder.rotations(torch.tensor(packing.positions))
        rotations = {rope: torch.view_as_real(pairs).flatten(1).numpy() for rope, pairs in turned.items()}
        slots, kinds = torch.tensor(packing.slots), self._config.layers
        step = _Step(rows, slots.numpy(), rotations=[rotations[kind.rope] for kind in kinds], views=[], attention=None)
        if not self._suits_kernel(packing.spans):
            return replace(step, attention=StepAttention(self._config, self._arena, packing.spans, slots))
        views = {window: view_of(packing.spans, window) for window in {kind.window for kind in kinds}}
        return replace(step, views=[views[kind.window] for kind in kinds])

    def _suits_kernel(self, spans: Sequence[Span]) -> bool:
        free = ROWS_FOR_GATHERING if len(spans) > 1 else 0
        keys = sum(max(0, span.length - free) * span.end for span in spans)
        return keys * self._config.num_attention_heads * self._config.head_dim <= KERNEL_CHANNELS * len(spans)

    def _add_and_norm(self, update: _Product, weight: Floats, step: _Step) -> None:
        epsilon = self._config.rms_norm_eps
        kernels.add_and_norm(
            self._stream.array, update.rows, update.scale, weight, epsilon, self._normed.array, step.rows
        )

    def _attended_to(self, index: int, layer: LayerWeights, step: _Step) -> _Product:
        config, arena = self._config, self._cached[index]
        qkv, rotation = self._normed.through(layer.qkv, step.rows), step.rotations[index]
        kernels.rotate_and_cache(
            qkv.rows, qkv.scale, rotation, arena, step.slots, config.num_attention_heads, step.rows
        )
        attended = self._attended
        if step.attention is not None:
            heads = qkv.tensor[: step.rows].view(step.rows, -1, config.head_dim)
            attended.tensor[: step.rows] = step.attention.attend(index, heads[:, : config.num_attention_heads])
        else:
            view, room = step.views[index], (self._mixed, self._scores, self._words)
            kernels.attend(qkv.rows, arena, view.seen, view.sight, config.attention_scale, attended.array, *room)
        return attended.through(layer.output, step.rows)

    def _gated_mlp(self, layer: LayerWeights, step: _Step) -> _Product:
        gate_up = self._normed.through(layer.gate_up, step.rows)
        kernels.gate(gate_up.rows, gate_up.scale, self._gated.array, step.rows, self._words)
        return self._gated.through(layer.down, step.rows)

"""The forward pass of Llama-like decoders (Llama, Mistral, Qwen 2 and 3, Gemma 2 and 3) over packed rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn import functional

from replicas.engine.decoder_config import DecoderConfig, Rope
from replicas.engine.linear import make_linear
from replicas.engine.rope import Rotation, rotate
from replicas.engine.weights import DecoderWeights, LayerWeights


class LayerAttention(Protocol):
    """Attention over what is cached, one call per layer."""

    def __call__(self, layer: int, queries: Tensor, keys_and_values: Tensor) -> Tensor:
        """Cache `[tokens, 2 * kv_heads, head_dim]`, then attend: `[tokens, heads, head_dim]` to the same, flat."""


@dataclass(frozen=True, slots=True)
class States:
    """What the layers made of the tokens."""

    last: Tensor
    """`[tokens, hidden]`, before the final norm."""
    tapped: Tensor | None
    """`[tokens, len(taps) * hidden]`"""


class Taps:
    """Collects the tapped states of one pass."""

    def __init__(self, taps: tuple[int, ...], stream: Tensor) -> None:
        """`taps` as in `Decoder`, `stream` the residual stream `[tokens, hidden]` that passes by."""
        self._taps = taps
        self._taken = stream.new_empty((len(stream), len(taps), stream.shape[1]))

    def take(self, index: int, state: Tensor) -> None:
        """Copy the state of this number, `[tokens, hidden]`, where it is tapped."""
        for place, tap in enumerate(self._taps):
            if tap == index:
                self._taken[:, place] = state

    def taken(self) -> Tensor | None:
        """`[tokens, len(taps) * hidden]`; None without taps."""
        return self._taken.flatten(1) if self._taps else None


class Decoder:
    """Config and weights. Knows nothing of sequences: attention comes with each call."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, taps: tuple[int, ...] = ()) -> None:
        """`taps`: i is the residual stream that enters layer i, the number of layers the last state after its norm."""
        self.config = config
        self.embedding = weights.embedding
        self.layers = weights.layers
        self._weights = weights
        self.taps = taps
        device = weights.embedding.device
        self._rotations = {kind.rope: Rotation.of(kind.rope, config.head_dim, device) for kind in config.layers}
        self._rotated_heads = config.num_attention_heads + config.num_key_value_heads

    def __call__(self, token_ids: Tensor, positions: Tensor, attention: LayerAttention) -> States:
        """Run int64 `[tokens]` at `positions` through all layers."""
        config = self.config
        stream = functional.embedding(token_ids, self.embedding)
        if config.is_gemma:
            stream *= config.hidden_size**0.5
        rotations = self.rotations(positions)
        taps = Taps(self.taps, stream)
        for index, layer in enumerate(self.layers):
            taps.take(index, stream)
            found = self._attended(index, layer, stream, rotations[config.layers[index].rope], attention)
            _add(stream, found, layer.after_attention_norm, config.rms_norm_eps)
            _add(stream, self._mlp(layer, stream), layer.after_mlp_norm, config.rms_norm_eps)
        return self.states(stream, taps)

    def states(self, stream: Tensor, taps: Taps) -> States:
        """Of a pass whose last layer left `[tokens, hidden]`."""
        if self.config.num_hidden_layers in self.taps:
            taps.take(self.config.num_hidden_layers, self.normed(stream))
        return States(stream, taps.taken())

    def rotations(self, positions: Tensor) -> dict[Rope, Tensor]:
        """`Rotation.at` for each kind of layers."""
        return {rope: rotation.at(positions) for rope, rotation in self._rotations.items()}

    def normed(self, stream: Tensor) -> Tensor:
        """The final norm of `[rows, hidden]`."""
        return _normed(stream, self._weights.norm, self.config.rms_norm_eps)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits float32 `[rows, vocab]` of final hidden states `[rows, hidden]` in the compute dtype."""
        logits = self._capped(self._weights.head(hidden))
        vocabulary = self._weights.vocabulary
        return logits if vocabulary is None else vocabulary.everywhere(logits)

    def cut_head(self, token_ids: Tensor) -> Callable[[Tensor], Tensor]:
        """`head` with its rows for some tokens alone, laid out apart: logits `[rows, n]` of token ids int64 `[n]`."""
        rows = make_linear(self._weights.head_rows(token_ids))
        return lambda hidden: self._capped(rows(hidden))

    def _capped(self, logits: Tensor) -> Tensor:
        logits, cap = logits.float(), self.config.logit_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _attended(
        self, index: int, layer: LayerWeights, stream: Tensor, rotation: Tensor, attention: LayerAttention
    ) -> Tensor:
        config, queries = self.config, self.config.num_attention_heads
        qkv = layer.qkv(_normed(stream, layer.attention_norm, config.rms_norm_eps))
        heads = qkv.view(len(qkv), -1, config.head_dim)
        rotated = heads[:, : self._rotated_heads]
        if layer.qk_norm is not None:
            rotated.copy_(_normed(rotated, layer.qk_norm, config.rms_norm_eps))
        rotate(rotated, rotation)
        return layer.output(attention(index, heads[:, :queries], heads[:, queries:]))

    def _mlp(self, layer: LayerWeights, stream: Tensor) -> Tensor:
        gate, up = layer.gate_up(_normed(stream, layer.mlp_norm, self.config.rms_norm_eps)).chunk(2, dim=1)
        if self.config.activation == "silu":
            return layer.down(functional.silu(gate).mul_(up))
        return layer.down(functional.gelu(gate, approximate="tanh").mul_(up))


def _add(stream: Tensor, update: Tensor, norm: Tensor | None, eps: float) -> None:
    """Add to the residual stream in place; Gemma norms first."""
    stream.add_(update if norm is None else _normed(update, norm, eps))


def _normed(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension (Zhang and Sennrich, arXiv:1910.07467, equation 4), in the weight's dtype."""
    wide = rows.to(weight.dtype)
    return (functional.rms_norm(wide, wide.shape[-1:], eps=eps) * weight).to(rows.dtype)

"""Medusa heads: several tokens ahead, each straight from the target's last hidden state.

Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", arXiv:2401.10774,
section 2.1.1: head i is W2 · (SiLU(W1 · h + b) + h), and predicts the token i + 2 places after that of state h.
Reads Medusa-1 files (`{i}.{j}.linear.*`, `{i}.{n}.weight`) and the layout that vLLM converts them to (`blocks.*`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fleet.errors import ConfigError
from replicas.engine.cut_vocabulary import CutVocabulary, cut_vocabulary
from replicas.engine.linear import Linear
from replicas.heads.checkpoint import Checkpoint
from replicas.heads.target import Shared


class MedusaHeads:
    """Hidden states [n, hidden] after the target's final norm to logits [heads, n, vocab].

    The number of heads is counted from the file: published configs name another one.
    """

    def __init__(self, checkpoint: Checkpoint, target: Shared) -> None:
        """Raises ConfigError where the file holds no heads for this target."""
        is_converted = any(name.startswith("blocks.") for name in checkpoint.tensors)
        self._trunks = _trunks(checkpoint, target, is_converted=is_converted)
        self._vocabulary: CutVocabulary | None = None
        if is_converted:
            self._outputs, self._vocabulary = _converted_outputs(checkpoint, target, self.count)
        else:
            self._outputs = [_output(checkpoint, target, f"{i}.{len(t)}") for i, t in enumerate(self._trunks)]

    @property
    def count(self) -> int:
        return len(self._trunks)

    def __call__(self, states: Tensor, count: int) -> Tensor:
        """The first `count` heads' logits, float32 [count, n, vocab]; tokens outside a cut vocabulary get none."""
        pairs = zip(self._trunks[:count], self._outputs[:count], strict=True)
        logits = torch.stack([output(_through(trunk, states)) for trunk, output in pairs]).float()
        return logits if self._vocabulary is None else self._vocabulary.everywhere(logits)


def _through(trunk: Sequence[Linear], hidden: Tensor) -> Tensor:
    """Residual blocks, one after the other."""
    for linear in trunk:
        hidden = hidden + functional.silu(linear(hidden))
    return hidden


def _trunks(checkpoint: Checkpoint, target: Shared, *, is_converted: bool) -> list[list[Linear]]:
    """The residual blocks of every head in the file."""
    trunks: list[list[Linear]] = []
    while names := _blocks(checkpoint, len(trunks), is_converted=is_converted):
        for name in names:
            target.require(checkpoint.name, hidden_size=checkpoint.tensors[f"{name}.weight"].shape[0])
        trunks.append([checkpoint.linear(name, target.hidden_size, target.hidden_size) for name in names])
    if not trunks:
        raise ConfigError(f"{checkpoint.name} holds no Medusa heads: no tensor '0.0.linear.weight' or 'blocks.0.…'")
    return trunks


def _blocks(checkpoint: Checkpoint, head: int, *, is_converted: bool) -> list[str]:
    """Names of one head's linear layers, in order."""
    pattern = "blocks.{head}.layers.{block}" if is_converted else "{head}.{block}.linear"
    names: list[str] = []
    while f"{pattern.format(head=head, block=len(names))}.weight" in checkpoint.tensors:
        names.append(pattern.format(head=head, block=len(names)))
    return names


def _output(checkpoint: Checkpoint, target: Shared, name: str) -> Linear:
    """An output layer over the target's whole vocabulary."""
    target.require(checkpoint.name, vocab_size=_rows(checkpoint, name) or target.vocab_size)
    return checkpoint.linear(name, target.vocab_size, target.hidden_size)


def _rows(checkpoint: Checkpoint, name: str) -> int:
    """Rows of a weight; 0 where there is none."""
    weight = checkpoint.tensors.get(f"{name}.weight")
    return 0 if weight is None else weight.shape[0]


def _converted_outputs(checkpoint: Checkpoint, target: Shared, count: int) -> tuple[list[Linear], CutVocabulary | None]:
    """vLLM's layout: `lm_heads.{i}`, or one that they share, and perhaps a `token_map` of absolute ids.

    Heads with a row for every token are cut to the map; those that were cut already have a row for each of its ids.
    """
    names = [f"lm_heads.{head}" for head in range(count)]
    if checkpoint.config.get("original_lm_head") is True:
        names = ["lm_head" if "lm_head.weight" in checkpoint.tensors else "lm_heads.0"] * count
    if "token_map" not in checkpoint.tensors:
        layers = {name: _output(checkpoint, target, name) for name in set(names)}
        return [layers[name] for name in names], None
    token_map = checkpoint.take("token_map", *checkpoint.tensors["token_map"].shape)
    vocabulary = cut_vocabulary(token_map, target.vocab_size, f"{checkpoint.name}: 'token_map'")
    layers = {name: _mapped_output(checkpoint, target, name, vocabulary.token_ids.cpu()) for name in set(names)}
    return [layers[name] for name in names], vocabulary


def _mapped_output(checkpoint: Checkpoint, target: Shared, name: str, target_ids: Tensor) -> Linear:
    """An output layer for these tokens, int64 [n] on the CPU."""
    if _rows(checkpoint, name) == len(target_ids):
        return checkpoint.linear(name, len(target_ids), target.hidden_size)
    target.require(checkpoint.name, vocab_size=_rows(checkpoint, name) or target.vocab_size)
    return checkpoint.linear(name, target.vocab_size, target.hidden_size, lambda tensor: tensor[target_ids])

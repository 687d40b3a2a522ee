"""Medusa heads: several tokens ahead, each straight from the target's last hidden state.

Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", arXiv:2401.10774,
section 2.1.1: head i is W2 · (SiLU(W1 · h + b) + h), and predicts the token i + 2 places after that of state h.
Reads Medusa-1 files (`{i}.{j}.linear.*`, `{i}.{n}.weight`) and the layout that vLLM converts them to (`blocks.*`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from fleet.errors import ConfigError
from replicas.heads.checkpoint import Checkpoint
from replicas.heads.target import Shared


class MedusaHeads(nn.Module):
    """Hidden states [n, hidden] after the target's final norm to logits [heads, n, vocab].

    The number of heads is counted from the file: published configs name another one.
    """

    def __init__(self, checkpoint: Checkpoint, target: Shared) -> None:
        """Raises ConfigError where the file holds no heads for this target."""
        super().__init__()
        self._vocab_size = target.vocab_size
        is_converted = any(name.startswith("blocks.") for name in checkpoint.tensors)
        self.trunks = nn.ModuleList(_trunks(checkpoint, target, is_converted=is_converted))
        self.count = len(self.trunks)
        if is_converted:
            outputs, target_ids = _converted_outputs(checkpoint, target, self.count)
        else:
            outputs, target_ids = _outputs(checkpoint, target, self.trunks), None
        self.outputs = nn.ModuleList(outputs)
        self.register_buffer("target_ids", target_ids, persistent=False)

    def forward(self, hidden: Tensor, count: int) -> Tensor:
        """The first `count` heads' logits, float32 [count, n, vocab]; tokens outside a cut vocabulary get none."""
        pairs = zip(self.trunks[:count], self.outputs[:count], strict=True)
        logits = torch.stack([output(trunk(hidden)) for trunk, output in pairs]).float()
        if self.target_ids is None:
            return logits
        everywhere = logits.new_full((*logits.shape[:2], self._vocab_size), -math.inf)
        return everywhere.index_copy_(2, self.get_buffer("target_ids"), logits)


class _ResidualBlock(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + functional.silu(self.linear(hidden))


def _trunks(checkpoint: Checkpoint, target: Shared, *, is_converted: bool) -> list[nn.Sequential]:
    """The residual blocks of every head in the file."""
    trunks: list[nn.Sequential] = []
    while names := _blocks(checkpoint, len(trunks), is_converted=is_converted):
        blocks = []
        for name in names:
            width = checkpoint.tensors[f"{name}.weight"].shape[0]
            target.require(checkpoint.name, hidden_size=width)
            blocks.append(_ResidualBlock(checkpoint.linear(name, width, width)))
        trunks.append(nn.Sequential(*blocks))
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


def _outputs(checkpoint: Checkpoint, target: Shared, trunks: nn.ModuleList) -> list[nn.Linear]:
    """Medusa-1: the layer behind the last block of each head, over the whole vocabulary."""
    layers = []
    for head, trunk in enumerate(trunks):
        assert isinstance(trunk, nn.Sequential)
        name = f"{head}.{len(trunk)}"
        rows = checkpoint.tensors.get(f"{name}.weight", torch.empty(target.vocab_size, 0)).shape[0]
        target.require(checkpoint.name, vocab_size=rows)
        layers.append(checkpoint.linear(name, target.vocab_size, target.hidden_size))
    return layers


def _converted_outputs(checkpoint: Checkpoint, target: Shared, count: int) -> tuple[list[nn.Linear], Tensor | None]:
    """vLLM's layout: `lm_heads.{i}`, or one that they share, and perhaps a `token_map` of absolute ids.

    Heads with a row for every token are cut to the map; those that were cut already have a row for each of its ids.
    """
    shared = checkpoint.config.get("original_lm_head") is True
    names = ["lm_head" if shared and "lm_head.weight" in checkpoint.tensors else f"lm_heads.{i}" for i in range(count)]
    if shared and names[0] != "lm_head":
        names = ["lm_heads.0"] * count
    token_map = checkpoint.tensors.get("token_map")
    target_ids = None if token_map is None else token_map.long()
    if target_ids is not None and not _is_map(target_ids, target.vocab_size):
        raise ConfigError(f"{checkpoint.name}: 'token_map' does not hold different token ids below {target.vocab_size}")
    layers: dict[str, nn.Linear] = {}
    for name in names:
        if name not in layers:
            layers[name] = _converted_output(checkpoint, target, name, target_ids)
    return [layers[name] for name in names], target_ids


def _converted_output(checkpoint: Checkpoint, target: Shared, name: str, target_ids: Tensor | None) -> nn.Linear:
    rows = checkpoint.tensors.get(f"{name}.weight", torch.empty(target.vocab_size, 0)).shape[0]
    if target_ids is None or rows not in (len(target_ids), target.vocab_size):
        target.require(checkpoint.name, vocab_size=rows)
    layer = checkpoint.linear(name, rows, target.hidden_size)
    if target_ids is not None and rows != len(target_ids):
        layer.weight = nn.Parameter(layer.weight[target_ids], requires_grad=False)
    return layer


def _is_map(target_ids: Tensor, vocab_size: int) -> bool:
    in_range = bool(((target_ids >= 0) & (target_ids < vocab_size)).all())
    return in_range and len(torch.unique(target_ids)) == len(target_ids)

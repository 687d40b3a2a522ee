"""From safetensors files to a decoder's weights: fused, laid out for the device, and refused where they do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fleet.errors import ConfigError
from replicas.engine.cut_vocabulary import DRAFT_TO_TARGET, CutVocabulary, offset_vocabulary
from replicas.engine.decoder_config import DecoderConfig
from replicas.engine.footprint import EMBEDDING, HEAD, tensor_shapes
from replicas.engine.linear import Linear, make_linear
from replicas.engine.rope import pair_channels

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. The norms after attention and MLP are Gemma's, the one of queries and keys Qwen 3's and Gemma 3's."""

    attention_norm: Tensor
    qkv: Linear
    """Queries, keys and values side by side; the channels of queries and keys in pairs (`rope.pair_channels`)."""
    qk_norm: Tensor | None
    """`[heads + kv_heads, head_dim]`"""
    output: Linear
    after_attention_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Linear
    """Gate and up side by side."""
    down: Linear
    after_mlp_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All of a model's weights."""

    embedding: Tensor
    """`[vocab, hidden]`, not yet scaled."""
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Linear
    vocabulary: CutVocabulary | None
    """The tokens that the head has rows for; None where it has one for each."""
    head_rows: Callable[[Tensor], Tensor]
    """Token ids int64 `[n]` to the head's own rows for them, `[n, hidden]`. Packed rows cannot be picked from, so
    where no embedding holds the same ones they are read anew."""


class Checkpoint:
    """The tensors in a folder's safetensors files, in one dtype on one device. A context manager."""

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype,
        device: torch.device,
        lender: Path | None = None,
        rounded_to: torch.dtype | None = None,
    ) -> None:
        """`lender`: the folder whose embedding and head are used. Values are rounded to what `rounded_to` has."""
        self._folder = folder
        self._lender = lender
        self._rounded_to = rounded_to or dtype
        self._dtype = dtype
        self._device = device
        self._open = ExitStack()
        self._files: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._files.update(self._tensors(self._folder))
        if self._lender is not None:
            lent = self._tensors(self._lender)
            self._files.update({name: file for name, file in lent.items() if name in (EMBEDDING, HEAD)})
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    def require(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """ConfigError unless there is a tensor of each name in its shape, and none is quantised."""
        missing = [name for name in shapes if name not in self._files]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise ConfigError(f"{self._folder} lacks the tensors {', '.join(missing[:3])}{more}")
        for name, shape in shapes.items():
            stored = self._files[name].get_slice(name)
            if tuple(stored.get_shape()) != shape:
                raise ConfigError(f"{name} is {stored.get_shape()} in {self._folder}, but its config says {[*shape]}")
            if stored.get_dtype() not in ("F32", "BF16", "F16", "F64"):
                raise ConfigError(
                    f"{name} is {stored.get_dtype()} in {self._folder}: use weights in bfloat16, float16 or float32"
                )

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of a name that `require` has found: never a view of the file, which would stay mapped."""
        stored: Tensor = self._files[name].get_tensor(name)
        rounded = stored.to(self._rounded_to) if dtype is None else stored
        return rounded.to(device=self._device, dtype=dtype or self._dtype, copy=rounded is stored)

    def rows(self, name: str, ids: Tensor) -> Tensor:
        """Some rows of such a tensor, ids int64 [n]; the others are not brought to the device."""
        picked: Tensor = self._files[name].get_tensor(name)[ids.cpu()]
        return picked.to(self._rounded_to).to(device=self._device, dtype=self._dtype)

    def _tensors(self, folder: Path) -> dict[str, Any]:
        """Open a folder's files; the file of each tensor by name."""
        found: dict[str, Any] = {}
        for path in _weight_files(folder):
            try:
                tensors = self._open.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ConfigError(f"{path} is not a readable safetensors file: {error}") from error
            found.update(dict.fromkeys(tensors.keys(), tensors))
        return found


def load_weights(checkpoint: Checkpoint, config: DecoderConfig) -> DecoderWeights:
    """Read and fuse all weights. Raises ConfigError naming what is missing or has another shape."""
    # Writers that drop duplicates keep tied weights under either name.
    embedding_name = HEAD if config.tie_word_embeddings and EMBEDDING not in checkpoint else EMBEDDING
    checkpoint.require(tensor_shapes(config, embedding_name))
    embedding = checkpoint.tensor(embedding_name)
    vocabulary = _vocabulary(checkpoint, config.vocab_size)

    def head_rows(token_ids: Tensor) -> Tensor:
        return embedding[token_ids] if config.tie_word_embeddings else checkpoint.rows(HEAD, token_ids)

    def head_rows_later(token_ids: Tensor) -> Tensor:
        with checkpoint:
            return head_rows(token_ids)

    if vocabulary is not None:
        head = head_rows(vocabulary.token_ids)
    else:
        head = embedding if config.tie_word_embeddings else checkpoint.tensor(HEAD)

    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_layer(checkpoint, config, index) for index in range(config.num_hidden_layers)),
        norm=_norm(checkpoint, config, "model.norm"),
        head=make_linear(head),
        vocabulary=vocabulary,
        head_rows=head_rows_later,
    )


def _vocabulary(checkpoint: Checkpoint, vocab_size: int) -> CutVocabulary | None:
    """The tokens that a draft can propose, where it says so."""
    if DRAFT_TO_TARGET not in checkpoint:
        return None
    return offset_vocabulary(checkpoint.tensor(DRAFT_TO_TARGET, torch.int64), vocab_size, f"'{DRAFT_TO_TARGET}'")


def _layer(checkpoint: Checkpoint, config: DecoderConfig, index: int) -> LayerWeights:
    prefix = f"model.layers.{index}"

    def norm(name: str) -> Tensor:
        return _norm(checkpoint, config, f"{prefix}.{name}")

    def fused(part: str, *names: str, has_bias: bool, order: Callable[[str, Tensor], Tensor] = _as_stored) -> Linear:
        def joined(kind: str) -> Tensor:
            return torch.cat([order(name, checkpoint.tensor(f"{prefix}.{part}.{name}.{kind}")) for name in names])

        return make_linear(joined("weight"), joined("bias") if has_bias else None)

    def paired(name: str, rows: Tensor) -> Tensor:
        return rows if name == "v_proj" else pair_channels(rows, config.head_dim)

    attention, mlp = "self_attn", "mlp"
    gemma = config.is_gemma
    return LayerWeights(
        attention_norm=norm("input_layernorm"),
        qkv=fused(attention, "q_proj", "k_proj", "v_proj", has_bias=config.has_qkv_bias, order=paired),
        qk_norm=_qk_norm(config, norm) if config.has_qk_norm else None,
        output=fused(attention, "o_proj", has_bias=config.has_output_bias),
        after_attention_norm=norm("post_attention_layernorm") if gemma else None,
        mlp_norm=norm("pre_feedforward_layernorm" if gemma else "post_attention_layernorm"),
        gate_up=fused(mlp, "gate_proj", "up_proj", has_bias=config.has_mlp_bias),
        down=fused(mlp, "down_proj", has_bias=config.has_mlp_bias),
        after_mlp_norm=norm("post_feedforward_layernorm") if gemma else None,
    )


def _as_stored(_name: str, rows: Tensor) -> Tensor:
    return rows


def _qk_norm(config: DecoderConfig, norm: Callable[[str], Tensor]) -> Tensor:
    """The weights of queries' and keys' norms, one row per head."""
    counts = {"q_norm": config.num_attention_heads, "k_norm": config.num_key_value_heads}
    weights = {name: pair_channels(norm(f"self_attn.{name}"), config.head_dim) for name in counts}
    return torch.cat([weights[name].expand(count, -1) for name, count in counts.items()])


def _norm(checkpoint: Checkpoint, config: DecoderConfig, name: str) -> Tensor:
    """A norm's weight; Gemma stores it less one and computes with it in float32."""
    if config.is_gemma:
        return checkpoint.tensor(f"{name}.weight", torch.float32) + 1.0
    return checkpoint.tensor(f"{name}.weight")


def _weight_files(folder: Path) -> list[Path]:
    """The files that the index names, or all; repositories often hold a second copy in another form."""
    index = folder / INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"{index} is not a readable index of safetensors files: {error}") from error
    return [folder / name for name in sorted(names)]

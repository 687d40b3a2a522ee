"""How many bytes does a loaded model or head take? From its tensors' shapes and how a device lays them out. Pure."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import StrEnum

from replicas.engine.decoder_config import DecoderConfig

Shape = tuple[int, ...]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
NARROW = frozenset({"bfloat16", "float16"})
"""Number formats whose values float16 holds, multiplied by one power of two (`linear.fits_fp16`)."""
HALF_BYTES, HALF_ROWS, HALF_COLUMNS = 2, 16, 512
"""FBGEMM keeps float16 in blocks of so many rows and columns of a weight, the last ones filled up."""


class Layout(StrEnum):
    """Of linear layers' weights."""

    PLAIN = "plain"
    """As they were read."""
    PACKED = "packed"
    """In oneDNN's blocks: a copy."""
    HALF = "half"
    """In FBGEMM's blocks of float16 where the values allow it, else packed: a copy."""


@dataclass(frozen=True, slots=True)
class LinearSize:
    """The weight of a linear layer."""

    rows: int
    columns: int
    is_narrow: bool
    """Whether its values were of a `NARROW` format."""

    @property
    def numbers(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a device keeps what it computes with."""

    number_bytes: int
    """Of embeddings, norms, biases and cached keys and values."""
    layout: Layout

    def weight_bytes(self, *, is_narrow: bool) -> int:
        """Of one number of a linear layer; those that only fill up blocks are kept, but not read."""
        return HALF_BYTES if self._is_half(is_narrow) else self.number_bytes

    def linear_bytes(self, layer: LinearSize) -> int:
        """Of a whole layer as it is kept."""
        if self._is_half(layer.is_narrow):
            return HALF_BYTES * _filled(layer.rows, HALF_ROWS) * _filled(layer.columns, HALF_COLUMNS)
        return self.number_bytes * layer.numbers

    def _is_half(self, is_narrow: bool) -> bool:
        return self.layout is Layout.HALF and is_narrow


@dataclass(frozen=True, slots=True)
class Needed:
    """Bytes that something takes on a device."""

    kept: int
    loading: int = 0
    """Besides, for a moment of being loaded; two things are never loaded at once."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a loaded model consists of."""

    linears: tuple[LinearSize, ...]
    numbers: int
    """In all other tensors: embeddings, norms, biases."""
    tied_head: LinearSize | None = None
    """An output layer that is the embedding, of which other layouts than the plain one are a copy."""
    copied: LinearSize | None = None
    """Rows of another model's output layer, which lie here once more in any layout."""

    @property
    def parameters(self) -> int:
        """Its own numbers."""
        return self.numbers + sum(layer.numbers for layer in self.linears)

    @property
    def all_numbers(self) -> int:
        """Its own and those that it copies."""
        return self.parameters + (self.copied.numbers if self.copied else 0)

    def bytes_in(self, keeping: Keeping) -> int:
        """Bytes once all is loaded."""
        return self.numbers * keeping.number_bytes + sum(map(keeping.linear_bytes, self._kept(keeping)))

    def read_bytes(self, keeping: Keeping) -> int:
        """Bytes that a pass over all of it reads."""
        layers = sum(keeping.weight_bytes(is_narrow=layer.is_narrow) * layer.numbers for layer in self._kept(keeping))
        return self.numbers * keeping.number_bytes + layers

    def loading_bytes(self, keeping: Keeping) -> int:
        """What the largest layer takes besides while it is laid out: its numbers as read, and once more scaled.

        Those of a tied head are read already: they are the embedding.
        """
        if keeping.layout is Layout.PLAIN:
            return 0
        read = (*self.linears, *([self.copied] if self.copied else ()))
        twice = 2 * max((layer.numbers for layer in read), default=0)
        return keeping.number_bytes * max(twice, self.tied_head.numbers if self.tied_head else 0)

    def _kept(self, keeping: Keeping) -> list[LinearSize]:
        head = None if keeping.layout is Layout.PLAIN else self.tied_head
        return [*self.linears, *(layer for layer in (head, self.copied) if layer is not None)]


def footprint_of(shapes: Mapping[str, Shape], narrow: Container[str], tied_head: LinearSize | None = None) -> Footprint:
    """Of tensors by name; `narrow` has the names of those whose values were of a `NARROW` format."""
    linears = {name: shape for name, shape in shapes.items() if _is_linear(name, shape)}
    others = sum(math.prod(shape) for name, shape in shapes.items() if name not in linears)
    sizes = tuple(LinearSize(rows, columns, name in narrow) for name, (rows, columns) in linears.items())
    return Footprint(sizes, others, tied_head)


def model_footprint(config: DecoderConfig, *, is_narrow: bool, head_rows: int | None = None) -> Footprint:
    """Of a decoder; `head_rows` where the output layer has rows for so many tokens only."""
    shapes = tensor_shapes(config)
    if head_rows is not None:
        shapes[HEAD] = (head_rows, config.hidden_size)
    tied = None if HEAD in shapes else LinearSize(config.vocab_size, config.hidden_size, is_narrow)
    return footprint_of(shapes, shapes if is_narrow else (), tied)


def tensor_shapes(config: DecoderConfig, embedding_name: str = EMBEDDING) -> dict[str, Shape]:
    """Name and shape of every tensor that a checkpoint must have."""
    hidden, queries = config.hidden_size, config.num_attention_heads * config.head_dim
    found: dict[str, Shape] = {embedding_name: (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not config.tie_word_embeddings:
        found[HEAD] = (config.vocab_size, hidden)
    keys, inner = config.num_key_value_heads * config.head_dim, config.intermediate_size
    linears = {
        "self_attn.q_proj": (queries, hidden, config.has_qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.has_qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.has_qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.has_output_bias),
        "mlp.gate_proj": (inner, hidden, config.has_mlp_bias),
        "mlp.up_proj": (inner, hidden, config.has_mlp_bias),
        "mlp.down_proj": (hidden, inner, config.has_mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.is_gemma:
        norms |= {"pre_feedforward_layernorm": hidden, "post_feedforward_layernorm": hidden}
    if config.has_qk_norm:
        norms |= {"self_attn.q_norm": config.head_dim, "self_attn.k_norm": config.head_dim}
    for prefix in (f"model.layers.{index}" for index in range(config.num_hidden_layers)):
        for name, (rows, columns, has_bias) in linears.items():
            found[f"{prefix}.{name}.weight"] = (rows, columns)
            if has_bias:
                found[f"{prefix}.{name}.bias"] = (rows,)
        found |= {f"{prefix}.{name}.weight": (width,) for name, width in norms.items()}
    return found


def _is_linear(name: str, shape: Shape) -> bool:
    return len(shape) == 2 and name.endswith(".weight") and not name.endswith("embed_tokens.weight")


def _filled(size: int, block: int) -> int:
    """The size in whole blocks."""
    return -(-size // block) * block

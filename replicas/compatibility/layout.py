"""Which kind of proposer does a checkpoint hold, and which tensors must that kind have? By name and shape alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet.errors import ConfigError
from replicas.compatibility.stored import Shape, StoredHead

MEDUSA_BLOCK = re.compile(r"^(?:medusa_head\.)?(\d+)\.(\d+)\.linear\.weight$")
CONVERTED_BLOCK = re.compile(r"^blocks\.(\d+)\.layers\.(\d+)\.weight$")
EAGLE3_TAPS = 3


class Kind(StrEnum):
    """What a checkpoint is; the values are the methods that use it."""

    DRAFT_MODEL = "draft_model"
    EAGLE = "eagle"
    EAGLE3 = "eagle3"
    MEDUSA = "medusa"


@dataclass(frozen=True, slots=True)
class MedusaShape:
    """Sizes of Medusa heads as the file has them; published configs name other numbers."""

    heads: int
    hidden: int
    vocabulary: int | None
    """Rows of an output layer, None where one is missing."""
    is_truncated: bool
    """A token_map names the tokens that the rows stand for."""


def recognise(shapes: Mapping[str, Shape]) -> Kind | None:
    """The kind of a checkpoint by its tensors' names, None where it is none that we know."""
    if any(MEDUSA_BLOCK.match(name) or CONVERTED_BLOCK.match(name) for name in shapes):
        return Kind.MEDUSA
    if "fc.weight" in shapes and any(name.endswith(".hidden_norm.weight") for name in shapes):
        return Kind.EAGLE3
    if "fc.weight" in shapes:
        return Kind.EAGLE
    if any(name.startswith(("model.layers.", "model.embed_tokens.", "model.language_model.")) for name in shapes):
        return Kind.DRAFT_MODEL
    return None


def medusa_shape(shapes: Mapping[str, Shape]) -> MedusaShape:
    """Sizes of the heads in a file that `recognise` calls Medusa."""
    blocks = _medusa_blocks(shapes)
    first = shapes[blocks[min(blocks)][0]]
    rows = next((shapes[name][0] for name in _medusa_outputs(shapes) if name in shapes), None)
    return MedusaShape(len(blocks), first[-1], rows, "token_map" in shapes)


def expected_medusa(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Tensors of Medusa heads (arXiv:2401.10774): as many alike as the file begins, each x + SiLU(Wx + b), then rows.

    Output layers need not be one for each head: vLLM's layout may share the first.
    """
    blocks, sizes = _medusa_blocks(shapes), medusa_shape(shapes)
    square = (sizes.hidden, sizes.hidden)
    expected: dict[str, Shape] = {name: square for names in blocks.values() for name in names}
    if sizes.vocabulary is not None:
        expected |= dict.fromkeys(_medusa_outputs(shapes), (sizes.vocabulary, sizes.hidden))
    return expected


def _medusa_blocks(shapes: Mapping[str, Shape]) -> dict[int, list[str]]:
    """Names of each head's residual layers, in order."""
    found = [(match, name) for name in shapes if (match := MEDUSA_BLOCK.match(name) or CONVERTED_BLOCK.match(name))]
    blocks: dict[int, list[str]] = {}
    for match, name in sorted(found, key=lambda item: (int(item[0][1]), int(item[0][2]))):
        blocks.setdefault(int(match[1]), []).append(name)
    return blocks


def _medusa_outputs(shapes: Mapping[str, Shape]) -> list[str]:
    """Names of the layers that give the heads' logits."""
    blocks = _medusa_blocks(shapes)
    if CONVERTED_BLOCK.match(next(iter(blocks.values()))[0]):
        shared = [name for name in ("lm_head.weight",) if name in shapes]
        own = [name for name in shapes if name.startswith("lm_heads.")]
        return shared or (own if len(own) == 1 else [f"lm_heads.{head}.weight" for head in blocks])
    prefix = next(iter(blocks.values()))[0].partition(f"{min(blocks)}.")[0]
    return [f"{prefix}{head}.{len(names)}.weight" for head, names in blocks.items()]


def drafted_tokens(head: StoredHead, shapes: Mapping[str, Shape]) -> int:
    """How many of the target's tokens an EAGLE head drafts: as its config says, else as its map or vocabulary does."""
    mapped = shapes.get("d2t")
    return head.draft_vocab_size or (head.vocab_size or 0 if mapped is None else math.prod(mapped))


def expected_eagle(head: StoredHead, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Tensors of an EAGLE-1/2 head (arXiv:2401.15077): fc over (embedding, hidden), one layer without input norm.

    `d2t` is no part of it, but where it is there it has to fit.
    """
    sizes = _layer_sizes(head)
    mapped: dict[str, Shape] = {"d2t": (drafted_tokens(head, shapes),)} if "d2t" in shapes else {}
    return {"fc.weight": (sizes.hidden, 2 * sizes.hidden), **dict(_layer("layers.0", sizes, sizes.hidden)), **mapped}


def expected_eagle3(head: StoredHead, shapes: Mapping[str, Shape], target_hidden: int) -> dict[str, Shape]:
    """Tensors of an EAGLE-3 head (arXiv:2503.01840): fc over the tapped states, one layer over (embedding, fused)."""
    sizes = _layer_sizes(head)
    prefix = "midlayer" if "midlayer.hidden_norm.weight" in shapes else "layers.0"
    taps = len(head.tap_ids or ()) or EAGLE3_TAPS
    rows = drafted_tokens(head, shapes)
    norms = ("norm", f"{prefix}.input_layernorm", f"{prefix}.hidden_norm")
    expected = {
        "fc.weight": (sizes.hidden, taps * (head.target_hidden_size or target_hidden)),
        "lm_head.weight": (rows, sizes.hidden),
        **{f"{name}.weight": (sizes.hidden,) for name in norms},
        **dict(_layer(prefix, sizes, 2 * sizes.hidden)),
    }
    if rows != head.vocab_size:
        expected["d2t"] = (rows,)
    return expected


def misfits(expected: Mapping[str, Shape], shapes: Mapping[str, Shape]) -> list[str]:
    """Tensors that are missing or have another shape, one phrase each."""
    wrong = [f"no '{name}'" for name in expected if name not in shapes]
    for name, shape in expected.items():
        if name in shapes and shapes[name] != shape:
            wrong.append(f"'{name}' is {list(shapes[name])} where {list(shape)} is expected")
    return wrong


@dataclass(frozen=True, slots=True)
class _LayerSizes:
    hidden: int
    width: int
    queries: int
    keys: int


def _layer_sizes(head: StoredHead) -> _LayerSizes:
    hidden, heads, width = head.hidden_size, head.num_attention_heads, head.intermediate_size
    if hidden is None or heads is None or width is None:
        raise ConfigError("the head's config.json lacks hidden_size, intermediate_size or num_attention_heads")
    head_dim = head.head_dim or hidden // heads
    # Absent means one for each query head.
    return _LayerSizes(hidden, width, heads * head_dim, (head.num_key_value_heads or heads) * head_dim)


def _layer(prefix: str, sizes: _LayerSizes, attended: int) -> Iterator[tuple[str, Shape]]:
    """A Llama layer whose attention reads `attended` numbers for each token."""
    yield f"{prefix}.self_attn.q_proj.weight", (sizes.queries, attended)
    yield f"{prefix}.self_attn.k_proj.weight", (sizes.keys, attended)
    yield f"{prefix}.self_attn.v_proj.weight", (sizes.keys, attended)
    yield f"{prefix}.self_attn.o_proj.weight", (sizes.hidden, sizes.queries)
    yield f"{prefix}.mlp.gate_proj.weight", (sizes.width, sizes.hidden)
    yield f"{prefix}.mlp.up_proj.weight", (sizes.width, sizes.hidden)
    yield f"{prefix}.mlp.down_proj.weight", (sizes.hidden, sizes.width)
    yield f"{prefix}.post_attention_layernorm.weight", (sizes.hidden,)

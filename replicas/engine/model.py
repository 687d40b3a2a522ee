"""The model as the engine sees it: packed segments in, logits out; one implementation, on Hugging Face modules."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from fleet.errors import ConfigError, OutOfMemory
from replicas.engine.attention import ATTENTION_NAME, ArenaShape, KvArena, PackedStep, Span, offsets
from replicas.engine.packed_linear import compute_dtype, pack_linears

SUPPORTED_FAMILIES = ("gemma2", "gemma3_text", "llama", "mistral", "qwen2", "qwen3")
# These change a token's rotation with the longest position in the batch: neighbours would change the answer.
UNSTABLE_ROPE = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive new tokens of one sequence."""

    extent_start: int
    position: int
    """Tokens of the sequence that are cached already."""
    token_ids: tuple[int, ...]
    logit_rows: int
    """Logits are wanted for the last so many tokens."""
    parents: tuple[int, ...] = ()
    """A drafted tree: for each of the last `len(parents)` tokens its parent, an index among these or -1 for the token
    before them; parents come first. Empty: a chain. A tree token's position is that of its parent plus one, and it
    sees the tokens before the tree, its ancestors and itself."""


@dataclass(frozen=True, slots=True)
class Forward:
    """What one pass over packed segments gave."""

    logits: Tensor
    """float32 `[sum(logit_rows), vocab]`, segment by segment."""
    features: Tensor | None
    """`[tokens, len(taps) * hidden]` in the compute dtype: every token's tapped states side by side; None without."""


class Model(Protocol):
    """A causal language model with a KV arena; `tests/fake_model.py` needs no weights."""

    vocab_size: int
    max_model_len: int
    kv_tokens: int

    def forward(self, segments: Sequence[Segment]) -> Forward:
        """Cache the segments' tokens, in the order given, behind those cached already. Raises OutOfMemory."""

    def move(self, source: int, target: int, length: int) -> None:
        """Copy cached tokens between extents."""

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Compact a verified tree: what is cached at `start + rows[i]` moves to `start + i`; rows ascend."""


class DecoderModel:
    """A `transformers` causal LM whose attention reads and writes our arena."""

    def __init__(
        self, module: PreTrainedModel, *, kv_tokens: int, max_model_len: int, taps: tuple[int, ...] = ()
    ) -> None:
        self.config = config = module.config
        self.vocab_size: int = config.vocab_size
        self.max_model_len = max_model_len
        self.kv_tokens = kv_tokens
        self.embedding: Tensor = module.get_input_embeddings().weight
        self._taps = taps
        self._tapped: dict[int, Tensor] = {}
        for index, layer in enumerate(module.model.layers):
            layer.register_forward_pre_hook(functools.partial(self._tap, index))
        module.model.norm.register_forward_hook(
            lambda _, inputs, output: self._tapped.__setitem__(config.num_hidden_layers, output[0])
        )
        self._module = module
        self._device = module.device
        with allocation_failures():
            shape = ArenaShape(config.num_hidden_layers, config.num_key_value_heads, kv_tokens, head_dim(config))
            self._arena = KvArena(shape, dtype=module.dtype, device=module.device)

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> Forward:
        packing = _pack(segments)
        packed = torch.tensor((packing.tokens, packing.positions, packing.slots), dtype=torch.int64).to(self._device)
        with allocation_failures():
            answer = self._module(
                input_ids=packed[0:1],
                position_ids=packed[1:2],
                use_cache=False,
                logits_to_keep=torch.tensor(packing.rows, dtype=torch.int64, device=self._device),
                step=PackedStep(self._arena, packing.spans, packed[2]),
            )
            logits: Tensor = answer.logits[0].float()
            features = torch.cat([self._tapped[tap] for tap in self._taps], dim=-1) if self._taps else None
        return Forward(logits, features)

    def _tap(self, index: int, _module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if index in self._taps:
            self._tapped[index] = inputs[0][0].clone()

    def head(self, hidden: Tensor) -> Tensor:
        """Logits float32 `[rows, vocab]` of final hidden states `[rows, hidden]` in the compute dtype."""
        logits: Tensor = self._module.lm_head(hidden).float()
        cap = getattr(self.config, "final_logit_softcapping", None)
        return logits if cap is None else torch.tanh(logits / cap) * cap

    @torch.inference_mode()
    def move(self, source: int, target: int, length: int) -> None:
        with allocation_failures():
            self._arena.move(source, target, length)

    @torch.inference_mode()
    def keep(self, start: int, rows: Sequence[int]) -> None:
        with allocation_failures():
            self._arena.keep(start, rows)


@dataclass(slots=True)
class _Packing:
    """All segments' tokens laid end to end."""

    spans: list[Span] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    """Packed rows whose logits are wanted."""


def _pack(segments: Sequence[Segment]) -> _Packing:
    packing = _Packing()
    for segment in segments:
        row, length = len(packing.tokens), len(segment.token_ids)
        first = segment.extent_start + segment.position
        packing.spans.append(Span(row, length, segment.extent_start, segment.position, segment.parents))
        packing.tokens.extend(segment.token_ids)
        packing.positions.extend(segment.position + offset for offset in offsets(length, segment.parents))
        packing.slots.extend(range(first, first + length))
        packing.rows.extend(range(row + length - segment.logit_rows, row + length))
    return packing


def load_model(
    folder: Path,
    *,
    dtype: str,
    device: str,
    kv_tokens: int,
    layers: int | None = None,
    max_model_len: int | None = None,
    taps: tuple[int, ...] = (),
) -> DecoderModel:
    """The model in a Hugging Face folder, with `layers` only its first layers, final norm and head.

    `dtype` is bfloat16 or float32, `device` cpu or cuda. `taps` names the states that become features: `i` is the
    residual stream that enters layer `i`, and the number of layers the last state after the final norm. Raises ConfigError where the architecture or a size
    does not fit, and OutOfMemory where weights or arena do not.
    """
    config = load_config(folder, layers=layers)
    limit = context_length(config, max_model_len)
    with allocation_failures():
        module = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, dtype),
            attn_implementation=ATTENTION_NAME,
            local_files_only=True,
        )
        target = torch.device(device)
        nn.Module.to(module.requires_grad_(False), device=target, dtype=compute_dtype(dtype, target))
        if target.type == "cpu":
            pack_linears(module)
    return DecoderModel(module, kv_tokens=kv_tokens, max_model_len=limit, taps=taps)


def load_config(folder: Path, *, layers: int | None = None) -> PreTrainedConfig:
    """The model's config, cut to its first `layers`; ConfigError where we cannot run it."""
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} holds no usable model config: {_first_line(error)}") from error
    if config.model_type not in SUPPORTED_FAMILIES:
        supported = ", ".join(SUPPORTED_FAMILIES)
        raise ConfigError(f"architecture '{config.model_type}' is not supported (supported: {supported})")
    if getattr(config, "quantization_config", None) is not None:
        raise ConfigError(f"{folder} holds quantised weights; use a checkpoint in bfloat16, float16 or float32")
    rope = _rope_types(config) & set(UNSTABLE_ROPE)
    if rope:
        raise ConfigError(f"rotary embedding '{min(rope)}' is not supported: it depends on the rest of the batch")
    if layers is not None:
        _keep_first_layers(config, layers)
    return config


def context_length(config: PreTrainedConfig, max_model_len: int | None) -> int:
    """The longest prompt and answer together; ConfigError where more is asked for than the model can."""
    context = int(config.max_position_embeddings)
    if max_model_len is not None and max_model_len > context:
        raise ConfigError(f"max_model_len {max_model_len} exceeds the model's context of {context}")
    return max_model_len or context


def head_dim(config: PreTrainedConfig) -> int:
    """Width of one attention head; some configs leave it to be derived."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def kv_bytes_per_token(config: PreTrainedConfig, dtype: str, device: str = "cpu") -> int:
    """Bytes that one cached token takes in all layers."""
    elements = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim(config)
    return int(elements * compute_dtype(dtype, torch.device(device)).itemsize)


@contextmanager
def allocation_failures() -> Iterator[None]:
    """Turn torch's and Python's ways of running out of memory into OutOfMemory; free what CUDA had cached."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemory(_first_line(error)) from error
    except RuntimeError as error:
        # The CPU allocator has no exception type of its own.
        if "can't allocate memory" not in str(error) and "not enough memory" not in str(error):
            raise
        raise OutOfMemory(_first_line(error)) from error


def _keep_first_layers(config: PreTrainedConfig, layers: int) -> None:
    if layers > config.num_hidden_layers:
        raise ConfigError(f"layers {layers} exceeds the model's {config.num_hidden_layers}")
    config.num_hidden_layers = layers
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None:
        config.layer_types = layer_types[:layers]


def _rope_types(config: PreTrainedConfig) -> set[Any]:
    """Kinds of rotary embedding in use; models with several keep one table per layer type."""
    parameters = getattr(config, "rope_parameters", None) or {}
    tables = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    return {table.get("rope_type") for table in tables}


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

"""The model as the engine sees it: packed segments in, logits out; a decoder and its KV arena."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fleet.errors import ConfigError, OutOfMemory
from replicas.engine.attention import StepAttention
from replicas.engine.decoder import Decoder, States
from replicas.engine.decoder_config import DecoderConfig, context_length, load_config
from replicas.engine.flash import has_flash
from replicas.engine.fused.steps import FusedSteps, can_fuse
from replicas.engine.graphs.recording import Recorder
from replicas.engine.graphs.shape import GraphShape
from replicas.engine.graphs.steps import StepGraphs
from replicas.engine.kv_arena import KvArena
from replicas.engine.linear import compute_dtype
from replicas.engine.packing import Packing, Segment, pack
from replicas.engine.transfer import to_device
from replicas.engine.weights import Checkpoint, load_weights


@dataclass(frozen=True, slots=True)
class Forward:
    """What one pass over packed segments gave."""

    logits: Tensor
    """float32 `[sum(logit_rows), vocab]`, segment by segment."""
    features: Tensor | None
    """`[tokens, len(taps) * hidden]` in the compute dtype: every token's tapped states side by side; None without."""
    was_recorded: bool = False
    """The step was recorded too, so that its time says nothing of the next one's."""


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
    """A decoder and the arena that its attention reads and writes. `decoder` is open to heads that share its parts."""

    def __init__(
        self, decoder: Decoder, *, kv_tokens: int, max_model_len: int, recorder: Recorder | None = None
    ) -> None:
        """With a `recorder`, steps of few rows are recorded and launched as a whole."""
        self.config = decoder.config
        self.vocab_size = self.config.vocab_size
        self.max_model_len = max_model_len
        self.kv_tokens = kv_tokens
        self.embedding = decoder.embedding
        """`[vocab, hidden]` in the compute dtype, unscaled."""
        self._decoder = decoder
        self._device = decoder.embedding.device
        self._has_flash = has_flash(self.config, decoder.embedding.dtype, self._device)
        places = kv_tokens if recorder is None else kv_tokens + 1
        with allocation_failures():
            self._arena = KvArena(self.config, places, dtype=decoder.embedding.dtype, device=self._device)
        self._graphs = None if recorder is None else StepGraphs(decoder, self._arena, recorder, scratch=kv_tokens)
        self._fused = FusedSteps(decoder, self._arena) if recorder is None and can_fuse(decoder) else None

    @property
    def cache_bytes(self) -> int:
        """What the KV arena takes."""
        return self._arena.size_bytes

    def graph_shape(self, segments: Sequence[Segment]) -> GraphShape | None:
        """That of the graph that such a step is run as, and recorded for when it is first met; None without one."""
        return None if self._graphs is None else self._graphs.shape(pack(segments).spans)

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> Forward:
        with allocation_failures():
            packing = pack(segments)
            recordings = self._recordings()
            states = self._states(packing)
            wanted = states.last
            if len(packing.rows) < len(packing.tokens):
                wanted = wanted[to_device(torch.tensor(packing.rows, dtype=torch.int64), self._device)]
            logits = self.head(self._decoder.normed(wanted))
            return Forward(logits, states.tapped, was_recorded=self._recordings() > recordings)

    def _recordings(self) -> int:
        return 0 if self._graphs is None else self._graphs.recordings

    def _states(self, packing: Packing) -> States:
        """What the layers make of the tokens, by the fastest way that there is for such a step."""
        states = None
        if self._graphs is not None:
            states = self._graphs.run(packing.spans, packing.tokens)
        elif self._fused is not None:
            states = self._fused.run(packing)
        return self._launched(packing) if states is None else states

    def _launched(self, packing: Packing) -> States:
        """The layers' states, launched operation by operation."""
        packed = to_device(torch.tensor((packing.tokens, packing.positions, packing.slots)), self._device)
        attention = StepAttention(self.config, self._arena, packing.spans, packed[2], flash=self._has_flash)
        return self._decoder(packed[0], packed[1], attention)

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """Logits float32 `[rows, vocab]` of normed final states `[rows, hidden]` in the compute dtype."""
        return self._decoder.head(hidden)

    @torch.inference_mode()
    def cut_head(self, token_ids: Tensor) -> Callable[[Tensor], Tensor]:
        """`head` for these tokens alone, int64 `[n]`: what it gives is `[rows, n]`, at the price of their rows."""
        return self._decoder.cut_head(token_ids)

    @torch.inference_mode()
    def move(self, source: int, target: int, length: int) -> None:
        with allocation_failures():
            self._arena.move(source, target, length)

    @torch.inference_mode()
    def keep(self, start: int, rows: Sequence[int]) -> None:
        with allocation_failures():
            self._arena.keep(start, rows)


def load_model(  # noqa: PLR0913 (each is one fact about the wanted model)
    folder: Path,
    *,
    dtype: str,
    device: str,
    kv_tokens: int,
    layers: int | None = None,
    max_model_len: int | None = None,
    taps: tuple[int, ...] = (),
    lender: Path | None = None,
    recorder: Recorder | None = None,
) -> DecoderModel:
    """The model in a Hugging Face folder, with `layers` only its first layers, final norm and head.

    `dtype` is bfloat16 or float32, `device` cpu or cuda. `taps` names the states that become features, 0 to n: `i`
    is the residual stream that enters layer `i`, the number of layers n the last state after the final norm.
    `lender` is the folder of the target whose embedding and head a trained draft uses, `recorder` what records
    small steps, if anything is to.
    Raises ConfigError where the architecture, a tensor or a size does not fit, OutOfMemory where weights or arena
    do not.
    """
    config = load_config(folder, layers=layers)
    limit = context_length(config, max_model_len)
    unknown = [tap for tap in taps if not 0 <= tap <= config.num_hidden_layers]
    if unknown:
        raise ConfigError(f"there is no state {unknown[0]} to tap: the model has {config.num_hidden_layers} layers")
    target = torch.device(device)
    with torch.inference_mode(), allocation_failures():
        wanted: torch.dtype = getattr(torch, dtype)
        with Checkpoint(folder, compute_dtype(dtype, target), target, lender, wanted) as checkpoint:
            decoder = Decoder(config, load_weights(checkpoint, config), taps)
        return DecoderModel(decoder, kv_tokens=kv_tokens, max_model_len=limit, recorder=recorder)


def kv_bytes_per_token(config: DecoderConfig, dtype: str, device: str = "cpu") -> int:
    """Bytes that one cached token takes in all layers."""
    elements = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
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


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

"""The target as training needs it: it answers in batches, shows its hidden states, and lends its embedding and head."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from deploy.train.settings import TrainSettings
from fleet.config import ModelConfig
from fleet.errors import ConfigError, OutOfMemory
from fleet.tokenizer import Tokenizer
from replicas.engine.decoder_config import DecoderConfig, load_config
from replicas.engine.footprint import EMBEDDING, HEAD
from replicas.engine.model import DecoderModel, load_model
from replicas.engine.packing import Segment
from replicas.engine.weights import Checkpoint
from replicas.model_store import Progress, resolve_model

ARENA_TOKENS = 12288
"""KV places; enough for a batch of answers under way, and for the longest training step."""
SAMPLE_BYTES = 2**20


@dataclass(frozen=True)
class TargetWeights:
    """The tensors of a Hugging Face folder, read when they are asked for."""

    folder: Path
    device: torch.device

    @cached_property
    def config(self) -> DecoderConfig:
        return load_config(self.folder)

    @cached_property
    def embedding(self) -> Tensor:
        """float32 [vocab, hidden]."""
        with Checkpoint(self.folder, torch.float32, self.device) as stored:
            is_stored = EMBEDDING in stored
        # Writers that drop duplicates keep tied weights under either name.
        return self._end(EMBEDDING if is_stored else HEAD)

    @cached_property
    def head(self) -> Tensor:
        """float32 [vocab, hidden]; the embedding where they are tied."""
        return self.embedding if self.config.tie_word_embeddings else self._end(HEAD)

    @cached_property
    def digest(self) -> str:
        """Tells weights apart by size, beginning and end of their files, without reading gigabytes."""
        digest = hashlib.sha256()
        for file in sorted(self.folder.glob("*.safetensors")):
            size = file.stat().st_size
            digest.update(f"{size} ".encode())
            with file.open("rb") as stream:
                digest.update(stream.read(SAMPLE_BYTES))
                stream.seek(max(0, size - SAMPLE_BYTES))
                digest.update(stream.read())
        return digest.hexdigest()[:16]

    def read(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Tensors in float32 on the training device; ConfigError where one is missing or has another shape."""
        with Checkpoint(self.folder, torch.float32, self.device) as stored:
            stored.require(shapes)
            return {name: stored.tensor(name) for name in shapes}

    def logits(self, states: Tensor, rows: Tensor | None = None) -> Tensor:
        """What the head makes of final states [n, hidden], float32 [n, vocab], or of its `rows` int64 [r] alone."""
        head = self.head if rows is None else self.head[rows]
        logits = states @ head.T
        cap = self.config.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _end(self, name: str) -> Tensor:
        return self.read({name: (self.config.vocab_size, self.config.hidden_size)})[name]


@dataclass(frozen=True, slots=True)
class Target:
    """A loaded target."""

    name: str
    model: DecoderModel
    tokenizer: Tokenizer
    weights: TargetWeights
    taps: tuple[int, ...]

    @property
    def layers(self) -> int:
        """How many there are, which is also the tap of the final state."""
        return self.weights.config.num_hidden_layers

    @property
    def context(self) -> int:
        """Tokens of the longest sequence that one pass over the arena can hold."""
        return min(self.model.max_model_len, self.model.kv_tokens)

    @torch.inference_mode()
    def states(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        """Tapped states of every token, bfloat16 [length, len(taps) * hidden] on the CPU, sequence by sequence.

        They are rounded even where the target computes in float32, so that it is the same whether they were cached.
        """
        found: list[Tensor] = []
        for group in _groups([len(sequence) for sequence in sequences], self.model.kv_tokens):
            segments, start = [], 0
            for index in group:
                segments.append(Segment(start, 0, tuple(sequences[index]), 0))
                start += len(sequences[index])
            features = self.model.forward(segments).features
            assert features is not None
            found += torch.split(features.to("cpu", torch.bfloat16), [len(sequences[index]) for index in group])
        return found


def load_target(settings: TrainSettings, taps_of: Callable[[int], tuple[int, ...]], progress: Progress) -> Target:
    """Find and load the target. Raises ConfigError in one line where that is impossible.

    `taps_of` says which states to tap, as in `load_model`, for a number of layers.
    """
    device = torch_device(settings.device)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    folder = resolve_model(ModelConfig(model=settings.target, dtype=settings.dtype), progress)
    weights = TargetWeights(folder, device)
    taps = taps_of(weights.config.num_hidden_layers)
    progress(f"loading {settings.target} in {settings.dtype} on {device.type}")
    try:
        model = load_model(folder, dtype=settings.dtype, device=device.type, kv_tokens=ARENA_TOKENS, taps=taps)
    except OutOfMemory as error:
        raise ConfigError(f"{settings.target} does not fit into the memory of {device.type}: {error}") from error
    return Target(settings.target, model, Tokenizer.load(folder), weights, taps)


def torch_device(choice: str) -> torch.device:
    """The device to train on; ConfigError where CUDA was asked for and there is none."""
    if choice == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda was asked for, and this machine has none that torch can use")
    is_cuda = choice == "cuda" or (choice == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if is_cuda else "cpu")


def _groups(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Indexes in order, together no longer than `most` tokens."""
    group: list[int] = []
    for index, length in enumerate(lengths):
        if group and sum(lengths[member] for member in group) + length > most:
            yield group
            group = []
        group.append(index)
    if group:
        yield group

"""How is a draft model trained? A few layers between the target's embedding and head learn its distribution."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModel, PreTrainedModel

from deploy.train.batches import Batch
from deploy.train.settings import DraftSettings
from deploy.train.target import TargetWeights
from deploy.train.trainee import Losses, distillation, mean
from deploy.train.vocabulary import DraftVocabulary
from fleet.errors import ConfigError
from replicas.engine.cut_vocabulary import DRAFT_TO_TARGET
from replicas.engine.decoder_config import SHARES_EMBEDDING
from replicas.engine.footprint import EMBEDDING
from replicas.heads.checkpoint import Checkpoint

PREFIX = "model."


class Draft:
    """Published as a Hugging Face folder without embedding and head, which are the target's, and with `d2t`."""

    name = "draft_model"

    def __init__(self, settings: DraftSettings) -> None:
        self._settings = settings

    def taps(self, layers: int) -> tuple[int, ...]:
        return (layers,)

    def vocabulary_size(self, vocab_size: int) -> int:
        return min(self._settings.draft_vocab, vocab_size)

    def initial(self, weights: TargetWeights, vocabulary: DraftVocabulary) -> Checkpoint:
        """Layers and final norm start as copies of the target's, the layers evenly spaced from first to last."""
        sources = self._sources(weights.config.num_hidden_layers)
        config = _cut(json.loads((weights.folder / "config.json").read_text()), sources)
        tensors = _copies(config, sources, weights)
        width, own = self._settings.intermediate, weights.config.intermediate_size
        if width is not None:
            if width > own:
                raise ConfigError(f"--intermediate {width} exceeds the target's {own}")
            config["intermediate_size"] = width
            for layer in range(len(sources)):
                tensors |= _narrowed(tensors, f"{PREFIX}layers.{layer}.mlp", width)
        if len(vocabulary) < vocabulary.vocab_size:
            tensors[DRAFT_TO_TARGET] = vocabulary.d2t.cpu()
        config |= {
            "base_model_name_or_path": self._settings.target,
            SHARES_EMBEDDING: True,
            "draft_vocab_size": len(vocabulary),
        }
        return Checkpoint(self.name, config, tensors)

    def trainee(self, checkpoint: Checkpoint, weights: TargetWeights, vocabulary: DraftVocabulary) -> DraftTrainee:
        return DraftTrainee(checkpoint, weights, vocabulary, self._settings)

    def _sources(self, deep: int) -> list[int]:
        """Which of the target's layers are copied."""
        layers = self._settings.layers
        if layers > deep:
            raise ConfigError(f"--layers {layers} exceeds the target's {deep}")
        return [round(index * (deep - 1) / max(1, layers - 1)) for index in range(layers)]


class DraftTrainee:
    """A `Trainee`."""

    def __init__(
        self, checkpoint: Checkpoint, weights: TargetWeights, vocabulary: DraftVocabulary, settings: DraftSettings
    ) -> None:
        self.depth = settings.depth
        self._decoder = _decoder(checkpoint, weights)
        self._weights = weights
        self._vocabulary = vocabulary

    def parameters(self) -> Iterator[nn.Parameter]:
        return (parameter for parameter in self._decoder.parameters() if parameter.requires_grad)

    def losses(self, batch: Batch, noise: torch.Generator) -> Losses:
        """Cross-entropy with the target's distribution over the draft vocabulary, at every answered token.

        Rows whose next token cannot be drafted teach nothing.
        """
        frequent = self._vocabulary.target_ids
        taught = batch.is_taught & self._vocabulary.t2d[batch.tokens[batch.ahead(1)]]
        student = self._weights.logits(self._states(batch)[taught], frequent)
        loss = mean(distillation(student, self._weights.logits(batch.states[taught], frequent)))
        return Losses(loss, {"token": loss})

    def agreement(self, batch: Batch) -> Tensor:
        """A draft that agreed so far has seen the answer's own tokens, so one pass over the answer is all chains."""
        states = self._states(batch)
        agreed = torch.zeros_like(batch.is_taught)
        drafted = self._weights.logits(states[batch.is_taught], self._vocabulary.target_ids).argmax(-1)
        following = batch.tokens[batch.ahead(1)][batch.is_taught]
        agreed[batch.is_taught] = self._vocabulary.target_ids[drafted] == following
        columns = [agreed[batch.ahead(1 + step)] & batch.is_taught_ahead(1 + step) for step in range(self.depth)]
        return torch.stack(columns, dim=-1)

    def _states(self, batch: Batch) -> Tensor:
        """Final states of all rows, float32 [n, hidden]; padding lies behind the answers and is seen by nobody."""
        sequences = torch.split(batch.tokens, list(batch.lengths))
        padded = pad_sequence(list(sequences), batch_first=True)
        states: Tensor = self._decoder(input_ids=padded, use_cache=False).last_hidden_state
        return torch.cat([row[:length] for row, length in zip(states, batch.lengths, strict=True)])


def _cut(config: dict[str, Any], sources: list[int]) -> dict[str, Any]:
    """The target's config for the chosen layers alone."""
    cut = config | {"num_hidden_layers": len(sources)}
    if config.get("layer_types") is not None:
        cut["layer_types"] = [config["layer_types"][source] for source in sources]
    return cut


def _empty_decoder(config: Mapping[str, Any]) -> PreTrainedModel:
    build: Callable[..., PreTrainedModel] = AutoModel.from_config
    return build(AutoConfig.for_model(**{**config, "pad_token_id": None}), dtype=torch.float32)


def _decoder(checkpoint: Checkpoint, weights: TargetWeights) -> PreTrainedModel:
    """The decoder whose parameters are the checkpoint's tensors, behind the target's frozen embedding."""
    decoder = _empty_decoder(checkpoint.config)
    nn.Module.to(decoder, weights.device)
    stored = checkpoint.tensors.items()
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in stored if name != DRAFT_TO_TARGET}
    decoder.load_state_dict({**tensors, EMBEDDING.removeprefix(PREFIX): weights.embedding}, assign=True)
    decoder.get_input_embeddings().requires_grad_(False)
    nn.Module.train(decoder, False)
    return decoder


def _copies(config: Mapping[str, Any], sources: list[int], weights: TargetWeights) -> dict[str, Tensor]:
    """The decoder's tensors without the embedding, each read from the layer that it copies."""
    with torch.device("meta"):
        decoder = _empty_decoder(config)
    shapes = {f"{PREFIX}{name}": tuple(own.shape) for name, own in decoder.named_parameters()}
    del shapes[EMBEDDING]
    origins = {name: _origin(name, sources) for name in shapes}
    read = weights.read({origin: shapes[name] for name, origin in origins.items()})
    return {name: read[origin] for name, origin in origins.items()}


def _origin(name: str, sources: list[int]) -> str:
    """The target's name of the tensor that a tensor of the draft copies."""
    head, is_layer, rest = name.partition(".layers.")
    index, _, part = rest.partition(".")
    return f"{head}.layers.{sources[int(index)]}.{part}" if is_layer else name


def _narrowed(tensors: Mapping[str, Tensor], mlp: str, width: int) -> dict[str, Tensor]:
    """An MLP cut to its strongest neurons, by the product of the norms of what each reads and writes."""
    gate, up, down = (tensors[f"{mlp}.{name}.weight"] for name in ("gate_proj", "up_proj", "down_proj"))
    strength = gate.norm(dim=1) * up.norm(dim=1) * down.norm(dim=0)
    kept = strength.topk(width).indices.sort().values
    narrow = {"gate_proj": gate[kept], "up_proj": up[kept], "down_proj": down[:, kept].contiguous()}
    return {f"{mlp}.{name}.weight": tensor for name, tensor in narrow.items()}

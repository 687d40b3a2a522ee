"""What do a checkpoint's files say about it? Configs, and names and shapes of tensors; no weight is read."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open

from fleet.config import explain
from fleet.errors import ConfigError
from replicas.heads.variants import unsupported_flags

PICKLED = (".bin", ".pt", ".pth")
FORMATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64", "I64": "int64"}
"""Of safetensors' words those that torch has others for."""
Shape = tuple[int, ...]
Size = Annotated[int, Field(ge=1)]
AnyModel = TypeVar("AnyModel", bound=BaseModel)


class StoredModel(BaseModel):
    """A target's or a draft model's config.json, as far as a pair depends on it."""

    model_config = ConfigDict(frozen=True)

    hidden_size: Size
    num_hidden_layers: Size
    vocab_size: Size
    max_position_embeddings: Size


class EagleConfig(BaseModel):
    """The section that some EAGLE-3 files keep their layer numbers in."""

    model_config = ConfigDict(frozen=True)

    eagle_aux_hidden_state_layer_ids: tuple[int, ...] | None = None


class Verifier(BaseModel):
    """The speculators library's word for the target."""

    model_config = ConfigDict(frozen=True)

    name_or_path: str | None = None


class SpeculatorsConfig(BaseModel):
    """The section in which the speculators library says what a head is for."""

    model_config = ConfigDict(frozen=True)

    verifier: Verifier | None = None


class StoredHead(BaseModel):
    """A head's config.json in any of the published layouts; the layer's own section is laid over the top level."""

    model_config = ConfigDict(frozen=True)

    hidden_size: Size | None = None
    intermediate_size: Size | None = None
    num_attention_heads: Size | None = None
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    num_hidden_layers: int = 1
    vocab_size: Size | None = None
    draft_vocab_size: Size | None = None
    target_hidden_size: Size | None = None
    max_position_embeddings: Size | None = None
    bias: bool | None = Field(None, description="Whether EAGLE's fc has a bias; absent says nothing.")
    eagle_aux_hidden_state_layer_ids: tuple[int, ...] | None = None
    eagle_config: EagleConfig | None = None
    speculators_model_type: str | None = None
    base_model_name_or_path: str | None = None
    speculators_config: SpeculatorsConfig | None = None
    unsupported_flags: tuple[str, ...] = Field((), description="What an EAGLE-3 config asks for in vain.")

    @property
    def made_for(self) -> str | None:
        """The target that the head was trained for, where its config names one."""
        if self.speculators_config is not None and self.speculators_config.verifier is not None:
            return self.speculators_config.verifier.name_or_path
        return self.base_model_name_or_path

    @property
    def tap_ids(self) -> tuple[int, ...] | None:
        """Layers whose input an EAGLE-3 head reads, where the config says so."""
        if self.eagle_aux_hidden_state_layer_ids is not None:
            return self.eagle_aux_hidden_state_layer_ids
        return self.eagle_config.eagle_aux_hidden_state_layer_ids if self.eagle_config else None


Stored = TypeVar("Stored", StoredModel, StoredHead)


def limited(config: Stored, context: int | None) -> Stored:
    """The config with a context of at most so many tokens; as it is where either says nothing."""
    if context is None or (config.max_position_embeddings or 0) <= context:
        return config
    return config.model_copy(update={"max_position_embeddings": context})


def read_model(folder: Path) -> StoredModel:
    """The model in a folder, of a multimodal one the language part. Raises ConfigError."""
    values = read_config(folder)
    return _validated(StoredModel, values.get("text_config", values), folder)


def read_head(folder: Path) -> StoredHead:
    """The head in a folder. Raises ConfigError."""
    values = read_config(folder)
    layer = values.get("transformer_layer_config")
    merged = values | (layer if isinstance(layer, dict) else {})
    return _validated(StoredHead, {**merged, "unsupported_flags": unsupported_flags(values)}, folder)


def read_config(folder: Path) -> dict[str, Any]:
    """A folder's config.json. Raises ConfigError."""
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{folder} holds no checkpoint: cannot read its config.json: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping")
    return values


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What a file says of a tensor."""

    shape: Shape
    number_format: str
    """In torch's words: bfloat16, float32, int64."""


def read_shapes(folder: Path) -> dict[str, Shape]:
    """Every tensor's shape by name. Raises ConfigError as `read_headers` does."""
    return {name: header.shape for name, header in read_headers(folder).items()}


def read_headers(folder: Path) -> dict[str, TensorHeader]:
    """Every tensor by name: from the headers of .safetensors files, else of pickled ones, run without code.

    Raises ConfigError where there is no such file or one cannot be read.
    """
    files = sorted(folder.glob("*.safetensors"))
    files = files or sorted(file for file in folder.iterdir() if file.suffix in PICKLED)
    if not files:
        raise ConfigError(f"{folder} holds no tensors: no .safetensors, .bin or .pt file")
    headers: dict[str, TensorHeader] = {}
    for file in files:
        headers.update(_safetensors(file) if file.suffix == ".safetensors" else _pickled(file))
    return headers


def _safetensors(file: Path) -> Iterator[tuple[str, TensorHeader]]:
    try:
        with safe_open(file, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                stored = tensors.get_slice(name)
                number_format = FORMATS.get(stored.get_dtype(), stored.get_dtype())
                yield name, TensorHeader(tuple(stored.get_shape()), number_format)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file} is not a readable safetensors file: {error}") from error


def _pickled(file: Path) -> Iterator[tuple[str, TensorHeader]]:
    import torch  # seconds to import, and most checkpoints need it not

    try:
        # On the meta device nothing but shapes comes into memory.
        content = torch.load(file, map_location="meta", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{file} cannot be read as tensors: {reason}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} does not hold tensors by name")
    for name, value in content.items():
        if isinstance(value, torch.Tensor):
            yield str(name), TensorHeader(tuple(value.shape), str(value.dtype).removeprefix("torch."))


def _validated(kind: type[AnyModel], values: Mapping[str, Any], folder: Path) -> AnyModel:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{folder / 'config.json'}: {explain(error)}") from error

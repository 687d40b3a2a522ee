"""What lies in a published head's folder? Its config and tensors, every use checked; nothing of it is executed."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from fleet.errors import ConfigError
from replicas.engine.linear import Linear, make_linear

Reorder = Callable[[Tensor], Tensor]
PICKLED = (".bin", ".pt", ".pth")
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Norm:
    """x · w / √(mean(x²) + ε) over the last dimension (Zhang, Sennrich, arXiv:1910.07467)."""

    weight: Tensor
    epsilon: float

    def __call__(self, rows: Tensor) -> Tensor:
        return functional.rms_norm(rows, self.weight.shape, self.weight, self.epsilon)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A config as written and the tensors by name. What is taken of them is a copy: no file need stay mapped."""

    name: str
    """What messages call it."""
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    """As read: on the CPU and in the dtype of the file."""
    device: torch.device = CPU
    """Where they are taken to."""
    dtype: torch.dtype | None = None
    """What floating-point tensors become then; None: they stay as they are."""

    def take(self, name: str, *shape: int) -> Tensor:
        """A copy of the tensor of that name and shape; ConfigError that says what is there instead."""
        return self._taken(self._stored(name, *shape))

    def _stored(self, name: str, *shape: int) -> Tensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ConfigError(f"{self.name} has no tensor '{name}'; it has {_some(self.tensors)}")
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"{self.name}: '{name}' has the shape {list(tensor.shape)}, expected {list(shape)}")
        return tensor

    def linear(self, name: str, rows: int, columns: int, reorder: Reorder | None = None) -> Linear:
        """The layer `name.weight` [rows, columns] with `name.bias` [rows] exactly where the file has one.

        `reorder` is applied to the rows of both, as they are stored.
        """

        def taken(kind: str, *shape: int) -> Tensor:
            stored = self._stored(f"{name}.{kind}", *shape)
            return self._taken(stored if reorder is None else reorder(stored))

        weight = taken("weight", rows, columns)
        return make_linear(weight, taken("bias", rows) if f"{name}.bias" in self.tensors else None)

    def norm(self, name: str, width: int, epsilon: float) -> Norm:
        """The RMS norm `name.weight` [width]."""
        return Norm(self.take(f"{name}.weight", width), epsilon)

    def placed(self, device: torch.device, dtype: torch.dtype) -> Checkpoint:
        """The same, to be taken to a device in the dtype to compute in: each when it is asked for, not all at once."""
        return replace(self, device=device, dtype=dtype)

    def _taken(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None, copy=True)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Config and tensors of a folder: `.safetensors` files where there are any, else pickled ones without code.

    Raises ConfigError in one line where the folder holds no readable head.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} is not a head's folder: its config.json cannot be read ({error})") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{folder}/config.json must hold an object")
    files = sorted(folder.glob("*.safetensors")) or sorted(
        file for file in folder.iterdir() if file.suffix in PICKLED and file.is_file()
    )
    if not files:
        raise ConfigError(f"{folder} has no .safetensors, .bin or .pt file")
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors.update(_read(file))
    return Checkpoint(folder.name, config, tensors)


def _read(file: Path) -> Mapping[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{file} cannot be read as tensors: {reason}") from error
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ConfigError(f"{file} does not hold tensors by name")
    return content


def _some(tensors: Mapping[str, Tensor], most: int = 6) -> str:
    names = sorted(tensors)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

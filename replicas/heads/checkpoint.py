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


@dataclass(frozen=True, slots=True)
class Norm:
    """x · w / √(mean(x²) + ε) over the last dimension (Zhang, Sennrich, arXiv:1910.07467)."""

    weight: Tensor
    epsilon: float

    def __call__(self, rows: Tensor) -> Tensor:
        return functional.rms_norm(rows, self.weight.shape, self.weight, self.epsilon)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A config as written and the tensors by name; as read, on the CPU and in the dtype of the file."""

    name: str
    """What messages call it."""
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor of that name and shape; ConfigError that says what is there instead."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ConfigError(f"{self.name} has no tensor '{name}'; it has {_some(self.tensors)}")
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"{self.name}: '{name}' has the shape {list(tensor.shape)}, expected {list(shape)}")
        return tensor

    def linear(self, name: str, rows: int, columns: int, reorder: Reorder | None = None) -> Linear:
        """The layer `name.weight` [rows, columns] with `name.bias` [rows] exactly where the file has one.

        `reorder` is applied to the rows of both.
        """
        weight = self.take(f"{name}.weight", rows, columns)
        bias = self.take(f"{name}.bias", rows) if f"{name}.bias" in self.tensors else None
        if reorder is not None:
            weight, bias = reorder(weight), None if bias is None else reorder(bias)
        return make_linear(weight, bias)

    def norm(self, name: str, width: int, epsilon: float) -> Norm:
        """The RMS norm `name.weight` [width]."""
        return Norm(self.take(f"{name}.weight", width), epsilon)

    def placed(self, device: torch.device, dtype: torch.dtype) -> Checkpoint:
        """Copies on a device, with floating-point tensors in the dtype to compute in: the file need not stay mapped."""
        tensors = {
            name: tensor.to(device, dtype if tensor.is_floating_point() else None, copy=True)
            for name, tensor in self.tensors.items()
        }
        return replace(self, tensors=tensors)


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

"""What lies in a published head's folder? Its config and tensors, every use checked; nothing of it is executed."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fleet.errors import ConfigError

PICKLED = (".bin", ".pt", ".pth")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A config as written and the tensors by name, on the CPU in the dtype of the file."""

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

    def linear(self, name: str, rows: int, columns: int) -> nn.Linear:
        """The layer `name.weight` [rows, columns] with `name.bias` [rows] exactly where the file has one."""
        has_bias = f"{name}.bias" in self.tensors
        layer = nn.Linear(columns, rows, bias=has_bias, device="meta")
        layer.weight = _frozen(self.take(f"{name}.weight", rows, columns))
        if has_bias:
            layer.bias = _frozen(self.take(f"{name}.bias", rows))
        return layer

    def norm(self, name: str, width: int, epsilon: float) -> nn.RMSNorm:
        """The RMS norm `name.weight` [width]."""
        layer = nn.RMSNorm(width, epsilon, device="meta")
        layer.weight = _frozen(self.take(f"{name}.weight", width))
        return layer


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


def _frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def _some(tensors: Mapping[str, Tensor], most: int = 6) -> str:
    names = sorted(tensors)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

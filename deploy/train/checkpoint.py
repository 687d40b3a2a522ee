"""Where did an interrupted training stand? Weights, optimizer and step in one file that is always whole."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fleet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """Everything random is a function of seed and step, so there is no generator to save."""

    path: Path
    identity: Mapping[str, str]
    """What makes two trainings the same, by name."""

    def save(self, step: int, tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
        """Replace the file: `step` steps are done."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".unfinished")
        state = {
            "step": step,
            "identity": dict(self.identity),
            "tensors": dict(tensors),
            "optimizer": optimizer.state_dict(),
        }
        torch.save(state, unfinished)
        os.replace(unfinished, self.path)

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> int:
        """Fill tensors and optimizer in place; the steps that are done, 0 without a file.

        Raises ConfigError where the file is of another training or unreadable.
        """
        if not self.path.exists():
            return 0
        state = self._read()
        different = [name for name, value in self.identity.items() if state["identity"].get(name) != value]
        if different:
            raise ConfigError(
                f"{self.path.parent.parent} holds a training with other {', '.join(different)}; "
                "give another --out, delete it, or use the same settings"
            )
        for name, tensor in tensors.items():
            tensor.copy_(state["tensors"][name])
        optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])

    def _read(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
            raise ConfigError(f"{self.path} cannot be read, delete it to start anew: {error}") from error
        return state

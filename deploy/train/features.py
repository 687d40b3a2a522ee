"""Hidden states of the target on the examples: computed when first needed, kept on disk within a budget."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from deploy.train.dialogues import Example

KEY = "states"


class StateSource(Protocol):
    """Runs the target; see `Target`."""

    @property
    def taps(self) -> tuple[int, ...]: ...

    def states(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]: ...


class Features:
    """A small file for each example and tap, until the folder holds `budget_bytes`; the rest is computed every time.

    Kinds of proposers that read the same tap, such as the final state, share its files.
    """

    def __init__(self, source: StateSource, folder: Path, budget_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._source = source
        self._folder = folder
        self._left = budget_bytes - sum(file.stat().st_size for file in folder.iterdir())

    def of(self, examples: Sequence[Example]) -> Tensor:
        """States of all tokens of all examples, end to end: bfloat16 [tokens, taps · hidden] on the CPU."""
        found = [self._read(example) for example in examples]
        missing = [index for index, states in enumerate(found) if states is None]
        computed = self._source.states([examples[index].tokens.tolist() for index in missing]) if missing else []
        for index, states in zip(missing, computed, strict=True):
            # Out of inference mode, so that autograd may keep it.
            found[index] = kept = states.clone()
            self._write(examples[index], kept)
        return torch.cat([states for states in found if states is not None])

    def _read(self, example: Example) -> Tensor | None:
        """All taps side by side; None where one is not there."""
        try:
            return torch.cat([load_file(self._file(example, tap))[KEY] for tap in self._source.taps], dim=-1)
        except (FileNotFoundError, SafetensorError, KeyError):
            return None

    def _write(self, example: Example, states: Tensor) -> None:
        size = states.numel() * states.element_size()
        if size > self._left:
            return
        taps = self._source.taps
        for tap, part in zip(taps, states.chunk(len(taps), dim=-1), strict=True):
            unfinished = self._folder / f"unfinished-{os.getpid()}"
            save_file({KEY: part.contiguous()}, unfinished)
            os.replace(unfinished, self._file(example, tap))
        self._left -= size

    def _file(self, example: Example, tap: int) -> Path:
        return self._folder / f"{example.key[:32]}-{tap}.safetensors"

"""A recorder for CPUs, as strict as CUDA graphs: operations are logged once, then repeated on the same memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from replicas.engine.decoder import States
from replicas.engine.graphs.recording import Step

ASKS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Marks of operations that would ask a GPU for a value: an error in a recording."""
BRINGS = torch.ops.aten.lift_fresh.default
"""Brings values from the host, which a replay would not do again."""


@dataclass
class _Call:
    operation: Callable[..., Any]
    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    outcome: Any

    def again(self) -> None:
        """No Python of the step runs: whatever it decided then is decided now."""
        outcome = self.operation(*self.arguments, **self.keywords)
        for old, new in zip(_tensors(self.outcome), _tensors(outcome), strict=True):
            if old.data_ptr() != new.data_ptr():
                old.copy_(new)


class _Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        is_repeatable = func is not BRINGS and not ASKS.intersection(func.tags)
        assert is_repeatable, f"{func} in a recording"
        outcome = func(*args, **(kwargs or {}))
        self.calls.append(_Call(func, args, kwargs or {}, outcome))
        return outcome


@dataclass
class OpRecorder:
    """Counts what it records and runs; its graphs' results are overwritten by the next one's, as in a shared pool."""

    recorded: int = 0
    replayed: int = 0
    _last: list[Tensor] = field(default_factory=list)

    def record(self, step: Step) -> Step:
        self.recorded += 1
        with _Log() as log:
            states = step()

        def replay() -> States:
            self.replayed += 1
            for tensor in self._last:
                tensor.fill_(torch.nan)
            for call in log.calls:
                call.again()
            self._last = [tensor for tensor in (states.last, states.tapped) if tensor is not None]
            return states

        return replay


def _tensors(outcome: Any) -> list[Tensor]:
    if isinstance(outcome, Tensor):
        return [outcome]
    return [each for each in outcome if isinstance(each, Tensor)] if isinstance(outcome, (tuple, list)) else []

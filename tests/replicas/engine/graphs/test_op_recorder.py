"""The tests' own recorder: it must be as strict as what it stands for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from replicas.engine.decoder import States
from tests.replicas.engine.graphs.op_recorder import OpRecorder


def test_a_replay_reads_what_is_there_now_and_decides_nothing_again() -> None:
    inputs, factor = torch.tensor([1.0, 2.0]), 3.0
    replay = OpRecorder().record(lambda: States((inputs * factor).add_(1), None))
    factor = 5.0
    inputs.copy_(torch.tensor([10.0, 20.0]))
    assert replay().last.tolist() == [31.0, 61.0]


def test_the_next_graph_overwrites_the_results() -> None:
    recorder = OpRecorder()
    first, second = (recorder.record(lambda: States(torch.ones(2) + 1, None)) for _ in range(2))
    found = first().last
    second()
    assert found.isnan().all()


@pytest.mark.parametrize(
    "bad",
    [
        lambda inputs: inputs * inputs[0].item(),
        lambda inputs: inputs + torch.tensor([1.0, 2.0]),
        lambda inputs: inputs[inputs > 1],
        lambda inputs: inputs if inputs.sum() > 1 else -inputs,
    ],
    ids=["a value", "a list", "a shape that depends on values", "a branch"],
)
def test_what_a_graph_cannot_hold_is_refused(bad: Callable[[Tensor], Tensor]) -> None:
    inputs = torch.tensor([1.0, 2.0])
    with pytest.raises(AssertionError, match="in a recording"):
        OpRecorder().record(lambda: States(bad(inputs), None))

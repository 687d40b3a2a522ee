"""Nothing of a forward pass stays on the CPU where the model is elsewhere: run on torch's device without memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from replicas.engine import transfer
from replicas.engine.graphs.recording import Step
from replicas.engine.model import load_model
from replicas.engine.packing import Segment
from tests.tiny_models import family_configs, tiny_model_folder

TOKENS = tuple(range(20, 60))


COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}


class _OneDevice(TorchDispatchMode):
    """No operation but a copy may see tensors of two devices; torch's own kernels without memory often do not look."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.ndim > 0]
        devices = {tensor.device.type for tensor in tensors}
        assert len(devices) <= 1 or func in COPIES, f"{func} between {devices}"
        return func(*args, **(kwargs or {}))


class PlainRecorder:
    """Runs the step again."""

    def record(self, step: Step) -> Step:
        return step


@pytest.fixture(autouse=True)
def on_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no memory to pin."""

    def as_it_is(host: Tensor, device: torch.device) -> Tensor:
        return host

    monkeypatch.setattr(transfer, "_sendable", as_it_is)


@pytest.mark.parametrize("recorder", [None, PlainRecorder()], ids=["launched", "graphs"])
@pytest.mark.parametrize("family", sorted(family_configs()))
def test_all_of_a_step_is_on_the_models_device(family: str, recorder: PlainRecorder | None, tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path, family_configs()[family])
    model = load_model(folder, dtype="bfloat16", device="meta", kv_tokens=200, taps=(0, 2), recorder=recorder)
    chunk, chain = Segment(0, 0, TOKENS, 1), Segment(100, 7, TOKENS[:4], 2)
    tree, short = Segment(50, 5, TOKENS[:5], 5, (-1, -1, 0, 0)), Segment(150, 3, TOKENS[:1], 1)
    for segments in ([chunk], [chunk, chain], [short], [chain, tree, short], [tree]):
        with _OneDevice():
            forward = model.forward(segments)
        assert forward.features is not None
        assert forward.logits.shape == (sum(each.logit_rows for each in segments), model.vocab_size)
        assert forward.features.shape[0] == sum(len(each.token_ids) for each in segments)
        assert (forward.logits.device.type, forward.features.device.type) == ("meta", "meta")
    with _OneDevice():
        model.keep(0, (0, 2))
        model.move(0, 20, 10)

"""Where a step's time goes, from the events of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from torch.profiler import profile

from deploy.bench.engine_arms import EngineArm
from deploy.bench.engine_profile import (
    ATTENTION,
    BETWEEN,
    ENGINE,
    FORWARD,
    KERNELS,
    LINEAR,
    PARTS,
    POINTWISE,
    SAMPLER,
    SAMPLING,
    Event,
    recorded_kernels,
    shares,
    table,
)
from fleet.config import EngineConfig, ModelConfig
from replicas.engine.fused import kernels
from replicas.target_model import load_target
from tests.tiny_models import family_configs, tiny_model_folder


@dataclass
class Op:
    name: str
    cpu_time_total: float
    cpu_children: Sequence[Event] = ()

    @property
    def self_cpu_time_total(self) -> float:
        return self.cpu_time_total - sum(child.cpu_time_total for child in self.cpu_children)


def test_every_microsecond_belongs_to_one_part() -> None:
    linear, scores, norm = Op("quantized::linear_dynamic_fp16", 500), Op("aten::bmm", 100), Op("aten::rms_norm", 50)
    softmax = Op("aten::softmax", 20, [Op("aten::_softmax", 20)])
    forward = Op(FORWARD, 800, [linear, scores, norm, softmax])
    events = [forward, *forward.cpu_children, *softmax.cpu_children, Op(SAMPLER, 100, [Op("aten::argmax", 60)])]
    found = shares(events, 0.001)
    assert found == pytest.approx(
        {LINEAR: 0.5, ATTENTION: 0.12, POINTWISE: 0.05, BETWEEN: 0.13, SAMPLING: 0.1, ENGINE: 0.1}
    )
    assert list(table({8: found}))[-1] == "| 8 | 50% | 12% | 5% | 13% | 10% | 10% |"


def test_a_compiled_kernel_belongs_to_the_part_whose_work_it_does() -> None:
    embedding, linear = Op("aten::index_select", 10), Op("quantized::linear_dynamic_fp16", 500)
    norm, rotation, attention, gate = (Op(name, spent) for name, spent in zip(KERNELS, (40, 30, 200, 70), strict=True))
    gathering = Op("aten::index_select", 50)
    calls = [embedding, norm, linear, rotation, gathering, attention, gate]
    found = shares([Op(FORWARD, 1000, calls), *calls], 0.001)
    assert found == pytest.approx(
        {LINEAR: 0.5, ATTENTION: 0.28, POINTWISE: 0.12, BETWEEN: 0.1, SAMPLING: 0.0, ENGINE: 0.0}
    )


def test_kernels_are_recorded_while_a_profile_wants_them_and_no_longer() -> None:
    gate, room = kernels.gate, np.zeros((1, 2), dtype=np.float32)
    with profile() as found, recorded_kernels():
        kernels.gate(room, 1.0, np.zeros((1, 1), dtype=np.float32), 1, np.zeros(1, dtype=np.int32))
    assert [event.name for event in found.events() if event.name in KERNELS] == ["gate"]
    assert kernels.gate is gate


@pytest.mark.parametrize("family", ["llama", "qwen3"], ids=["compiled kernels", "operations of torch"])
def test_a_real_profile_knows_all_parts_of_a_step(tmp_path: Path, family: str) -> None:
    model = ModelConfig(model=str(tiny_model_folder(tmp_path, family_configs()[family])), dtype="float32")
    config = EngineConfig(device="cpu", threads=1, max_num_seqs=2, kv_cache_tokens=200)
    arm = EngineArm(load_target(model, config, lambda line: None), config)
    found = arm.profile([(3, 4, 5), (6, 7, 8)], 6)
    assert sum(found.values()) == pytest.approx(1.0)
    assert all(found[part] > 0 for part in PARTS)

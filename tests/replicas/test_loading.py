from __future__ import annotations

from pathlib import Path

import pytest

from fleet.config import EngineConfig
from replicas.engine.model import Segment, load_model
from replicas.loading import step_recorder, warm_up
from tests.replicas.engine.graphs.op_recorder import OpRecorder
from tests.tiny_models import tiny_model_folder


@pytest.mark.parametrize("engine", [EngineConfig(), EngineConfig(enforce_eager=True)])
def test_nothing_is_recorded_on_a_cpu(engine: EngineConfig) -> None:
    assert step_recorder("cpu", engine) is None


def test_enforce_eager_records_nothing_on_a_gpu() -> None:
    assert step_recorder("cuda", EngineConfig(enforce_eager=True)) is None


def test_first_requests_meet_steps_that_are_recorded_already(tmp_path: Path) -> None:
    recorder = OpRecorder()
    model = load_model(tiny_model_folder(tmp_path), dtype="float32", device="cpu", kv_tokens=256, recorder=recorder)
    warm_up(model, EngineConfig(max_num_seqs=3))
    recorded = recorder.recorded
    assert recorded == 3 * 4  # 1, 2 and up to 4 sequences of 1, 2, 4 and up to 8 rows
    for sequences, rows in ((1, 1), (3, 1), (2, 5), (1, 3)):
        model.forward([Segment(index * 50, 20, (9,) * rows, rows) for index in range(sequences)])
    assert recorder.recorded == recorded

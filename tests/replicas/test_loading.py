from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pytest

from fleet.config import EngineConfig
from replicas import loading
from replicas.engine.graphs.recording import Recorder, Step
from replicas.engine.graphs.shape import GraphShape
from replicas.engine.graphs.steps import GATHERED_BYTES, MOST_GRAPHS
from replicas.engine.model import DecoderModel, load_model
from replicas.engine.packing import Segment
from replicas.loading import MOST_RECORDED, RECORDING_SECONDS, graph_memory, step_recorder, warm_up
from tests.fakes import ManualClock
from tests.replicas.engine.graphs.op_recorder import OpRecorder
from tests.tiny_models import family_configs, tiny_model_folder


def test_workers_start_without_torchs_compiler() -> None:
    """To import it takes as long as all the rest."""
    code = "import sys, replicas.target_worker, replicas.draft_worker; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("engine", [EngineConfig(), EngineConfig(enforce_eager=True)])
def test_nothing_is_recorded_on_a_cpu(engine: EngineConfig) -> None:
    assert step_recorder("cpu", engine) is None


def test_enforce_eager_records_nothing_on_a_gpu() -> None:
    assert step_recorder("cuda", EngineConfig(enforce_eager=True)) is None


def test_only_recorded_steps_are_given_memory() -> None:
    assert graph_memory("cpu", EngineConfig()) == graph_memory("cuda", EngineConfig(enforce_eager=True)) == {}
    assert graph_memory("cuda", EngineConfig())["CUDA graphs"].kept > 2 * GATHERED_BYTES


def load(folder: Path, recorder: Recorder, *, kv_tokens: int = 1100) -> DecoderModel:
    config = family_configs()["llama"]
    config.update({"max_position_embeddings": 2048})
    tiny_model_folder(folder, config)
    return load_model(folder, dtype="float32", device="cpu", kv_tokens=kv_tokens, recorder=recorder)


def decode(model: DecoderModel, sequences: int, rows: int, context: int) -> None:
    model.forward([Segment(0, context - rows, (9,) * rows, rows)] * sequences)


@pytest.mark.parametrize("kv_tokens", [256, 1100])
def test_first_requests_meet_steps_that_are_recorded_already(tmp_path: Path, kv_tokens: int) -> None:
    recorder = OpRecorder()
    model = load(tmp_path, recorder, kv_tokens=kv_tokens)
    warm_up(model, EngineConfig(max_num_seqs=3), ManualClock())
    recorded = recorder.recorded
    for sequences, rows, context in product((1, 2, 3), (1, 3, 8), (20, 256, 257, 700, 1025, 1100)):
        if context <= kv_tokens:
            decode(model, sequences, rows, context)
    assert recorder.recorded == recorded


@dataclass
class SlowRecorder(OpRecorder):
    """Every graph takes a quarter of the time that there is for all."""

    clock: ManualClock = field(default_factory=ManualClock)

    def record(self, step: Step) -> Step:
        self.clock.advance(RECORDING_SECONDS / 4)
        return super().record(step)


def recorded_shapes(model: DecoderModel) -> list[GraphShape]:
    """Of all graphs, in the order in which they were run last."""
    assert model._graphs is not None
    return list(model._graphs._graphs)


def test_the_step_that_gathers_most_is_recorded_first_and_long_contexts_last(tmp_path: Path) -> None:
    model = load(tmp_path, OpRecorder())
    warm_up(model, EngineConfig(max_num_seqs=4), ManualClock())
    first, *others = recorded_shapes(model)
    assert first == GraphShape(4, 8, 2048)
    assert len(others) == 47
    assert [shape.keys for shape in others] == sorted(shape.keys for shape in others)


def test_recording_ends_with_its_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = SlowRecorder()
    with caplog.at_level("INFO"):
        warm_up(load(tmp_path, recorder), EngineConfig(max_num_seqs=4), recorder.clock)
    assert recorder.recorded == 4
    assert "44 of 48 usual steps are recorded when they are first met" in caplog.text


def test_recording_leaves_room_for_what_comes_up_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MOST_RECORDED", 7)
    recorder = OpRecorder()
    warm_up(load(tmp_path, recorder), EngineConfig(max_num_seqs=4), ManualClock())
    assert recorder.recorded == 7
    assert MOST_RECORDED < MOST_GRAPHS

"""Recorded steps compute what launched ones do: fp32, every family, on a recorder as strict as CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from replicas.engine.decoder import States
from replicas.engine.graphs import shape, steps
from replicas.engine.graphs.recording import NotRecorded, Recorder, RecordingFailed, Step
from replicas.engine.model import DecoderModel, load_model
from replicas.engine.packing import Segment
from tests.replicas.engine.graphs.op_recorder import OpRecorder
from tests.replicas.engine.requests import request
from tests.replicas.engine.rig import KnowingProposer, Rig, slow_twin
from tests.replicas.engine.stories import EXTENT, KV_TOKENS, growing
from tests.tiny_models import family_configs, tiny_model_folder

TAPS = (0, 2, 4)


@pytest.fixture(params=sorted(family_configs()), scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("model"), family_configs()[request.param], is_varied=True)


@pytest.fixture(autouse=True)
def narrow_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts of a few dozen tokens cross several edges."""
    monkeypatch.setattr(shape, "FIRST_KEYS", 16)


def load(folder: Path, recorder: Recorder | None = None) -> DecoderModel:
    return load_model(folder, dtype="float32", device="cpu", kv_tokens=KV_TOKENS, taps=TAPS, recorder=recorder)


@dataclass
class Pair:
    """The same model twice, once with graphs."""

    plain: DecoderModel
    graphed: DecoderModel
    recorder: OpRecorder

    @torch.inference_mode()
    def poison(self) -> None:
        """Whatever reads what was never written, or the scratch place, gets no number."""
        for model in (self.plain, self.graphed):
            model._arena.memory.fill_(torch.nan)

    @torch.inference_mode()
    def step(self, segments: Sequence[Segment]) -> None:
        self.graphed._arena.memory[:, :, KV_TOKENS:] = torch.nan
        expected, found = self.plain.forward(segments), self.graphed.forward(segments)
        close(found.logits, expected.logits)
        assert found.features is not None
        assert expected.features is not None
        close(found.features, expected.features)
        cached = self.graphed._arena.memory[:, :, :KV_TOKENS]
        torch.testing.assert_close(cached, self.plain._arena.memory, rtol=1e-5, atol=1e-4, equal_nan=True)


def close(actual: Tensor, expected: Tensor) -> None:
    assert actual.isfinite().all()
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=2e-4)


@pytest.fixture(scope="module")
def pair(folder: Path) -> Pair:
    recorder = OpRecorder()
    return Pair(load(folder), load(folder, recorder), recorder)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(growing())
def test_any_mix_of_spans_computes_what_it_does_launched_one_by_one(pair: Pair, story: list[list[Segment]]) -> None:
    pair.poison()
    for segments in story:
        pair.step(segments)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny_model_folder(tmp_path)


def test_a_context_grows_across_the_edges_with_one_graph_for_each(llama: Path) -> None:
    recorder = OpRecorder()
    pair = Pair(load(llama), load(llama, recorder), recorder)
    pair.poison()
    pair.step([Segment(EXTENT, 0, tuple(range(20, 33)), 1)])
    for position in range(13, 36):
        pair.step([Segment(EXTENT, position, (20 + position,), 1)])
    assert recorder.recorded == 4  # 13 rows, then one row that sees up to 16, 32 and 64 keys
    assert recorder.replayed == 24


@dataclass
class HoldingRecorder:
    """Knows what each graph's results are held in."""

    held: list[States] = field(default_factory=list)

    def record(self, step: Step) -> Step:
        self.held.append(step())
        return step


def decode(model: DecoderModel, rows: int) -> Tensor:
    return model.forward([Segment(0, 0, (9,) * rows, 1)]).logits


def test_graphs_keep_nothing_of_their_own_but_their_inputs(llama: Path) -> None:
    recorder = HoldingRecorder()
    model = load(llama, recorder)
    for rows in (1, 2, 4, 8):
        decode(model, rows)
    assert len({states.last.untyped_storage().data_ptr() for states in recorder.held}) == 1
    assert (
        len({states.tapped.untyped_storage().data_ptr() for states in recorder.held if states.tapped is not None}) == 1
    )


def test_the_graphs_used_least_recently_are_dropped(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MOST_GRAPHS", 2)
    recorder = OpRecorder()
    model = load(llama, recorder)
    for rows in (1, 2, 1, 4, 1):  # at the third shape that of 2 rows goes
        decode(model, rows)
    assert recorder.recorded == 3
    decode(model, 2)
    assert recorder.recorded == 4


def test_a_step_says_whether_it_was_recorded(llama: Path) -> None:
    recorded, failed, launched = load(llama, OpRecorder()), load(llama, FailingRecorder()), load(llama)
    for model, expected in ((recorded, [True, False]), (failed, [True, False]), (launched, [False, False])):
        assert [model.forward([Segment(0, 0, (9, 9), 1)]).was_recorded for _ in range(2)] == expected


class FailingRecorder:
    """There is no memory for any graph."""

    asked = 0

    def record(self, step: Step) -> Step:
        self.asked += 1
        raise NotRecorded("no room")


def test_a_step_that_cannot_be_recorded_runs_all_the_same(llama: Path) -> None:
    recorder = FailingRecorder()
    model = load(llama, recorder)
    for _ in range(2):
        torch.testing.assert_close(decode(model, 3), decode(load(llama), 3))
    assert recorder.asked == 1


class BreakingRecorder(OpRecorder):
    """Its second recording fails for good."""

    def record(self, step: Step) -> Step:
        if self.recorded == 1:
            self.recorded += 1
            raise RecordingFailed("operation not permitted")
        return super().record(step)


def test_after_a_recording_failed_nothing_is_recorded_and_what_there_is_still_runs(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = BreakingRecorder()
    model, plain = load(llama, recorder), load(llama)
    for rows in (1, 2, 4, 2, 1):
        torch.testing.assert_close(decode(model, rows), decode(plain, rows))
    assert (recorder.recorded, recorder.replayed) == (2, 2)
    assert [record.message for record in caplog.records] == [
        "no graphs from now on, beyond the 1 recorded: operation not permitted"
    ]


def test_chunks_of_prompts_are_not_recorded(llama: Path) -> None:
    recorder = OpRecorder()
    model = load(llama, recorder)
    decode(model, shape.MOST_ROWS + 1)
    assert recorder.recorded == 0


def answers(model: DecoderModel, *, is_speculative: bool) -> Iterator[list[int]]:
    requests = [request(str(index), prompt_length=4 + index) for index in range(3)]
    plain = requests if is_speculative else []
    proposer = KnowingProposer(plain, lambda each: slow_twin(model, each), error_rate=0.3) if is_speculative else None
    results = Rig(model, proposer=proposer, max_num_seqs=3).run(*requests)
    return (results[each.request_id].token_ids for each in requests)


@pytest.mark.parametrize("is_speculative", [False, True])
def test_an_engine_on_graphs_gives_the_same_answers(llama: Path, is_speculative: bool) -> None:
    recorder = OpRecorder()
    found = list(answers(load(llama, recorder), is_speculative=is_speculative))
    assert found == list(answers(load(llama), is_speculative=False))
    assert recorder.replayed > 5

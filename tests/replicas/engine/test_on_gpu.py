"""On a GPU: graphs, flash attention and transfers beside the same model launched step by step and on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fleet.clock import SystemClock
from fleet.config import EngineConfig
from replicas.engine.decoder import States
from replicas.engine.flash import causal_attention, has_flash
from replicas.engine.graphs.recording import CudaRecorder, RecordingFailed
from replicas.engine.model import DecoderModel, load_model
from replicas.engine.packing import Segment
from replicas.engine.transfer import to_device, to_host
from replicas.loading import warm_up
from tests.replicas.engine.requests import mixed_requests
from tests.replicas.engine.rig import KnowingProposer, Rig, slow_twin
from tests.tiny_models import family_configs, tiny_model_folder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

DEVICE = "cuda"
KV_TOKENS = 1200
GAP = 0.05
"""Of the largest logit: what two orders of summation in bfloat16 may differ by."""
TREE = (-1, -1, 0, 0, 2)


@pytest.fixture(params=sorted(family_configs()), scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("model"), family_configs()[request.param])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("llama"))


def load(folder: Path, dtype: str, *, device: str = DEVICE, graphs: bool = False) -> DecoderModel:
    recorder = CudaRecorder() if graphs else None
    return load_model(folder, dtype=dtype, device=device, kv_tokens=KV_TOKENS, taps=(0, 2), recorder=recorder)


def story() -> list[list[Segment]]:
    """Prompts in chunks, then chains and trees whose shapes come again, with contexts short and nearly at the limit."""
    tokens = tuple(20 + 7 * index % 150 for index in range(240))
    steps = [[Segment(0, 0, tokens[:100], 1)], [Segment(0, 100, tokens[100:], 1), Segment(300, 0, tokens[:9], 1)]]
    for turn in range(4):
        chain = Segment(300, 9 + turn, tokens[turn : turn + 4], 4)
        steps += [
            [Segment(0, 240 + turn, tokens[turn : turn + 1], 1), chain],
            [chain, Segment(600, 0, tokens[: 1 + len(TREE)], 1 + len(TREE), TREE), Segment(900, 0, tokens[:2], 1)],
        ]
    return steps


@pytest.mark.parametrize(("dtype", "gap"), [("float32", 1e-4), ("bfloat16", GAP)])
def test_graphs_compute_what_is_launched_step_by_step(folder: Path, dtype: str, gap: float) -> None:
    plain, graphed = load(folder, dtype), load(folder, dtype, graphs=True)
    for segments in story():
        expected, found = plain.forward(segments), graphed.forward(segments)
        assert_within(found.logits, expected.logits, gap)
        assert found.features is not None
        assert expected.features is not None
        assert_within(found.features.float(), expected.features.float(), gap)


@pytest.mark.parametrize(("dtype", "gap"), [("float32", 1e-3), ("bfloat16", 2 * GAP)])
def test_a_gpu_computes_what_a_cpu_does(folder: Path, dtype: str, gap: float) -> None:
    on_cpu, on_gpu = load(folder, "float32", device="cpu"), load(folder, dtype, graphs=True)
    for segments in story():
        assert_within(on_gpu.forward(segments).logits.cpu(), on_cpu.forward(segments).logits, gap)


def assert_within(found: Tensor, expected: Tensor, gap: float) -> None:
    """No value is off by more than this part of the largest one."""
    assert found.isfinite().all()
    assert float((found - expected).abs().max()) <= gap * float(expected.abs().max())


@pytest.mark.parametrize("is_speculative", [False, True])
def test_answers_on_graphs_are_those_of_the_obvious_way(llama: Path, is_speculative: bool) -> None:
    requests = mixed_requests()
    twin = load(llama, "float32")
    expected = {each.request_id: slow_twin(twin, each) for each in requests}
    proposer = KnowingProposer(requests, lambda each: expected[each.request_id], error_rate=0.3)
    rig = Rig(load(llama, "float32", graphs=True), proposer=proposer if is_speculative else None, max_num_seqs=6)
    results = rig.run(*requests)
    for each in requests:
        assert results[each.request_id].answer() == expected[each.request_id].answer()


def test_a_replayed_step_asks_the_gpu_for_nothing(llama: Path) -> None:
    model = load(llama, "bfloat16", graphs=True)
    steps = story()
    for segments in steps:
        model.forward(segments)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for segments in steps[2:]:
            model.forward(segments)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_loading_records_the_usual_steps(llama: Path) -> None:
    model = load(llama, "bfloat16", graphs=True)
    warm_up(model, EngineConfig(max_num_seqs=6), SystemClock())
    assert bool(model.forward([Segment(0, 0, (5, 6, 7), 3)]).logits.isfinite().all())


def test_a_recording_that_fails_leaves_the_gpu_usable() -> None:
    recorder = CudaRecorder()
    ones = torch.ones(1000, device=DEVICE)
    replay = recorder.record(lambda: States(ones + 1, None))
    with pytest.raises(RecordingFailed):
        recorder.record(lambda: States(ones * ones.sum().item(), None))
    with pytest.raises(RecordingFailed, match="earlier"):
        recorder.record(lambda: States(ones + 2, None))
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert (torch.full((10**6,), 3.0, device=DEVICE) + 1).sum().item() == 4 * 10**6
    assert replay().last.sum().item() == 2000


@pytest.mark.parametrize(("rows", "keys"), [(256, 256), (256, 1000), (17, 333)])
@pytest.mark.parametrize("heads", [(9, 3, 64), (32, 8, 128)])
def test_flash_attention_is_that_of_the_formula(rows: int, keys: int, heads: tuple[int, int, int]) -> None:
    count, kv_count, width = heads
    generator = torch.Generator(DEVICE).manual_seed(5)
    queries, cached = (
        torch.randn(each, length, width, generator=generator, device=DEVICE, dtype=torch.bfloat16)
        for each, length in ((count, rows), (kv_count, keys))
    )
    found = causal_attention(queries, cached, cached, width**-0.5).float()
    wide = cached.float().repeat_interleave(count // kv_count, 0)
    scores = queries.float() @ wide.transpose(1, 2) * width**-0.5
    hidden = torch.ones(rows, keys, dtype=torch.bool, device=DEVICE).triu(keys - rows + 1)
    expected = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ wide
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_the_shipped_models_format_has_a_flash_kernel(llama: Path) -> None:
    assert has_flash(load(llama, "bfloat16").config, torch.bfloat16, torch.device(DEVICE))


@pytest.mark.parametrize("values", [[[1, 2, 3], [4, 5, 6]], [[]]])
def test_what_goes_to_the_gpu_and_back_is_the_same(values: Sequence[Sequence[int]]) -> None:
    sent = torch.tensor(values, dtype=torch.int64)
    assert to_host(to_device(sent, torch.device(DEVICE))).tolist() == sent.tolist()

"""A whole worker with a tiny model behind its real socket."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fleet.config import DrillConfig, EngineConfig, ModelConfig, SpeculativeConfig
from fleet.errors import ConfigError, DeadlineExceeded, ReplicaLost
from fleet.generation import FailureKind, StreamFailed
from fleet.token_codec import cancel_frame
from fleet.tokens_v1 import tokens_pb2 as pb
from fleet.traffic import DRAFT_LINK_EVENTS
from replicas import target_worker
from replicas.target_model import TargetModel, load_target
from replicas.target_worker import TargetWorker, WorkerSettings
from tests.replicas.engine.requests import GREEDY, mixed_requests, request
from tests.replicas.engine.rig import Result
from tests.replicas.worker_router import Router, answers, started
from tests.tiny_models import tiny_model_folder

ENGINE = EngineConfig(max_num_batched_tokens=32, kv_cache_tokens=2000, threads=1, device="cpu")
ENDLESS = replace(GREEDY, max_tokens=240, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("tiny") / "model")


def settings(folder: Path, **changes: object) -> WorkerSettings:
    plain = WorkerSettings("baseline", ModelConfig(model=str(folder), dtype="float32"), ENGINE)
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def target(folder: Path) -> TargetModel:
    return load_target(settings(folder).model, ENGINE, lambda line: None)


@pytest.fixture
def loaded(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers share one model: what an earlier one left in the arena means nothing to the next."""
    monkeypatch.setattr(target_worker, "load_target", lambda *_: target)


@pytest.fixture
async def worker(folder: Path, loaded: None) -> AsyncIterator[TargetWorker]:
    started = await TargetWorker.start(settings(folder))
    yield started
    await started.close(grace_seconds=0.0)


def failure_of(result: Result) -> StreamFailed:
    assert result.failure is not None
    return result.failure


async def until_idle(worker: TargetWorker) -> None:
    async with asyncio.timeout(30):
        while (report := worker.report("r")).running or report.waiting or report.kv_used_tokens:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the engine's thread has no event to wait for


async def test_speculation_changes_no_answer_and_a_step_is_one_frame(worker: TargetWorker, folder: Path) -> None:
    requests = [*mixed_requests(), request("loops", replace(ENDLESS, max_tokens=120))]
    ngram = SpeculativeConfig(method="ngram", prompt_lookup_min=1, adaptive=False)
    async with started(settings(folder, path="speculative", speculative=ngram)) as speculative:
        async with Router(worker) as plain, Router(speculative) as drafted:
            assert answers(await plain.run(*requests)) == answers(await drafted.run(*requests))
            rounds = [chunk.round for result in drafted.results.values() for chunk in result.chunks if chunk.round]
            assert sum(round_.accepted for round_ in rounds) > 0
            assert max(len(frame) for frame in plain.frames) > 1
            for frame in plain.frames:
                names = [output.request_id for output in frame]
                assert len(names) == len(set(names))
        assert speculative.report("r").draft == "healthy"
        assert worker.report("r").draft == "none"


async def test_a_draft_that_never_comes_costs_no_answer(worker: TargetWorker, folder: Path) -> None:
    remote = SpeculativeConfig(method="draft_model", layers=1)
    async with started(settings(folder, speculative=remote)) as alone:
        assert alone.verify_address
        requests = mixed_requests()
        async with Router(worker) as plain, Router(alone) as waiting:
            assert answers(await plain.run(*requests)) == answers(await waiting.run(*requests))
        assert alone.report("r").draft_link == dict.fromkeys(DRAFT_LINK_EVENTS, 0)
        assert worker.report("r").draft_link == {}


async def test_a_report_tells_gpu_memory_where_there_is_any(worker: TargetWorker) -> None:
    assert worker.report("r").gpu_memory_bytes == torch.cuda.max_memory_allocated()


async def test_two_routers_share_an_engine_and_their_ids_do_not_clash(worker: TargetWorker) -> None:
    async with Router(worker) as one, Router(worker) as other:
        first, second = await asyncio.gather(one.run(request("a")), other.run(request("a", ENDLESS)))
    assert len(first["a"].token_ids) < len(second["a"].token_ids)


async def test_a_router_that_leaves_frees_everything(worker: TargetWorker) -> None:
    async with Router(worker) as router:
        await router.start(*(request(f"r{i}", ENDLESS) for i in range(20)))
        await router.receive()
        assert worker.report("r").running > 0
    await until_idle(worker)
    await worker.finished("r0", 0.0)


async def test_a_cancelled_stream_falls_silent_and_frees_its_slot(worker: TargetWorker) -> None:
    async with Router(worker) as router:
        slot = asyncio.create_task(worker.finished("gone", 30.0))
        await router.start(request("gone", ENDLESS), request("stays", replace(ENDLESS, max_tokens=60)))
        await router.receive()
        await router.send(cancel_frame(["gone", "nobody"]))
        await slot
        while not router.results["stays"].has_ended:
            await router.receive()
        assert not router.results["gone"].has_ended
    await until_idle(worker)


async def test_a_router_that_asks_for_nothing_more_gets_the_rest(worker: TargetWorker) -> None:
    async with Router(worker) as router:
        await router.start(request("a"))
        await router.half_close()
        while not router.results["a"].has_ended:
            await router.receive()
        assert await router.is_over()


async def test_wrong_requests_fail_alone(worker: TargetWorker) -> None:
    async with Router(worker) as router:
        router.results["empty"] = Result()
        await router.send(pb.RouterFrame(start=pb.Start(request_id="empty")), pb.RouterFrame())
        await router.run(replace(request("stranger"), prompt_token_ids=(9999,)), request("good"))
        while not router.results["empty"].has_ended:
            await router.receive()
    assert failure_of(router.results["empty"]).kind == FailureKind.BAD_REQUEST
    assert failure_of(router.results["stranger"]).kind == FailureKind.BAD_REQUEST
    assert router.results["good"].failure is None


async def test_a_second_start_of_an_id_is_ignored(worker: TargetWorker) -> None:
    async with Router(worker) as router:
        twice = request("a", replace(ENDLESS, max_tokens=30))
        await router.start(twice)
        results = await router.run(twice)
    assert len(results["a"].token_ids) == 30


async def test_shutting_down_lets_streams_finish_and_takes_no_new_ones(folder: Path, loaded: None) -> None:
    worker = await TargetWorker.start(settings(folder))
    async with Router(worker) as router:
        await router.start(request("open", replace(ENDLESS, max_tokens=100)))
        await router.receive()
        closing = asyncio.create_task(worker.close(grace_seconds=60.0))
        await asyncio.sleep(0)
        await router.run(request("new"))
        while not router.results["open"].has_ended:
            await router.receive()
        assert failure_of(router.results["new"]).kind == FailureKind.SHUTTING_DOWN
        assert len(router.results["open"].token_ids) == 100
        await closing


async def test_streams_that_outlast_the_grace_are_told_so(folder: Path, loaded: None) -> None:
    slow = settings(folder, drill=DrillConfig(step_delay_ms=20))
    worker = await TargetWorker.start(slow)
    async with Router(worker) as router:
        await router.start(request("open", ENDLESS))
        await router.receive()
        closing = asyncio.create_task(worker.close(grace_seconds=0.0))
        while not router.results["open"].has_ended:
            await router.receive()
        assert failure_of(router.results["open"]).kind == FailureKind.SHUTTING_DOWN
        await closing


async def test_a_drilled_allocation_fails_for_real_once_and_the_worker_goes_on(folder: Path, loaded: None) -> None:
    worker = await TargetWorker.start(settings(folder, drill=DrillConfig(out_of_memory_after_requests=2)))
    await worker.check_health()
    async with Router(worker) as router:
        await router.run(request("first"))
        await router.run(request("second"), request("third"))
        failures = [router.results[name].failure for name in ("second", "third")]
        assert FailureKind.OUT_OF_MEMORY in {failure.kind for failure in failures if failure}
        assert (await router.run(request("fourth")))["fourth"].failure is None
    report = worker.report("r")
    assert (report.out_of_memory, report.kv_used_tokens) == (1, 0)
    await worker.close(grace_seconds=0.0)


async def test_useless_prompt_lookup_costs_acceptance_and_no_answer(worker: TargetWorker, folder: Path) -> None:
    ngram = SpeculativeConfig(method="ngram", prompt_lookup_min=1, adaptive=False)
    useless = settings(folder, speculative=ngram, drill=DrillConfig(useless_draft=True, draft_delay_ms=1))
    async with started(useless) as drilled:
        requests = [request("a", replace(ENDLESS, max_tokens=60)), request("b", prompt_length=30)]
        async with Router(worker) as plain, Router(drilled) as spoiled:
            assert answers(await plain.run(*requests)) == answers(await spoiled.run(*requests))
        report = drilled.report("r")
        assert (report.draft_tokens, report.may_pause_drafting) == (ngram.num_speculative_tokens, False)
        rounds = [chunk.round for result in spoiled.results.values() for chunk in result.chunks if chunk.round]
        assert sum(round_.drafted for round_ in rounds) > 20
        assert sum(round_.accepted for round_ in rounds) < 0.2 * sum(round_.drafted for round_ in rounds)


async def test_health_is_a_real_token_and_counts_nowhere(worker: TargetWorker) -> None:
    await worker.check_health()
    report = worker.report("r")
    assert (report.output_tokens, report.running, report.kv_used_tokens) == (0, 0, 0)
    assert report.running_limit == EngineConfig().max_num_seqs
    assert (report.draft_tokens, report.may_pause_drafting) == (0, False)
    assert 0 < report.accept_seconds < report.verify_seconds


async def test_an_engine_that_stands_still_is_unhealthy(
    folder: Path, loaded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_worker, "PROBE_SECONDS", 0.01)
    worker = await TargetWorker.start(settings(folder, drill=DrillConfig(step_delay_ms=300)))
    with pytest.raises(DeadlineExceeded):
        await worker.check_health()
    await worker.close(grace_seconds=0.0)
    with pytest.raises(ReplicaLost):
        await worker.check_health()


async def test_a_context_beyond_the_model_is_refused_in_one_line(folder: Path) -> None:
    model = ModelConfig(model=str(folder), dtype="float32", max_model_len=512)
    with pytest.raises(ConfigError, match=r"^max_model_len 512 exceeds the model's context of 256$"):
        await TargetWorker.start(settings(folder, model=model))


async def test_a_wrong_pair_is_refused_before_it_serves(folder: Path, loaded: None, tmp_path: Path) -> None:
    draft = tiny_model_folder(tmp_path / "draft")
    (draft / "chat_template.jinja").write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    speculative = SpeculativeConfig(method="draft_model", model=str(draft))
    with pytest.raises(ConfigError, match=r"cannot propose for .*: chat template: they write the turns .* differently"):
        await TargetWorker.start(settings(folder, speculative=speculative))


@pytest.mark.slow
async def test_the_worker_runs_as_a_process_that_prints_its_addresses(folder: Path) -> None:
    engine = ENGINE.model_dump(mode="json")
    arguments = {"path": "baseline", "model": {"model": str(folder), "dtype": "float32"}, "engine": engine}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "replicas.target_worker",
        "--settings",
        json.dumps(arguments),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    try:
        addresses = json.loads(await process.stdout.readline())
        assert addresses["tokens_address"].startswith("127.0.0.1:")
        assert addresses["verify_address"] is None
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()

"""Heads and suffix decoding in a whole target worker: from a folder on disk to the router's socket."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaConfig

from fleet.config import EngineConfig, ModelConfig, SpeculativeConfig
from fleet.errors import ConfigError
from replicas.target_worker import TargetWorker, WorkerSettings
from tests.replicas.engine.requests import mixed_requests, request
from tests.replicas.heads.checkpoints import eagle3, medusa
from tests.replicas.worker_router import Router, answers, started
from tests.tiny_models import SIZES, tiny_model_folder

ENGINE = EngineConfig(kv_cache_tokens=1000, threads=1, device="cpu")


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> WorkerSettings:
    sizes = {**SIZES, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 8, "vocab_size": 60}
    folder = tiny_model_folder(tmp_path_factory.mktemp("tiny") / "target", LlamaConfig(**sizes))
    return WorkerSettings("baseline", ModelConfig(model=str(folder), dtype="float32"), ENGINE)


async def test_drafting_in_the_targets_process_changes_no_answer(baseline: WorkerSettings, tmp_path: Path) -> None:
    requests = [each for each in mixed_requests() if each.sampling.max_tokens <= 20]
    async with started(baseline) as plain, Router(plain) as router:
        expected = answers(await router.run(*requests))
    proposers = {
        "eagle3": {"model": str(eagle3().write(tmp_path / "eagle3")), "tree": [2, 2, 1]},
        "medusa": {"model": str(medusa().write(tmp_path / "medusa")), "num_speculative_tokens": 3},
        "suffix": {},
    }
    for method, keys in proposers.items():
        speculative = SpeculativeConfig.model_validate({"method": method, "adaptive": False, **keys})
        async with started(replace(baseline, speculative=speculative)) as worker, Router(worker) as router:
            assert answers(await router.run(*requests)) == expected, method
            rounds = [chunk.round for result in router.results.values() for chunk in result.chunks if chunk.round]
            assert sum(round_.drafted for round_ in rounds) > 0, method
            assert worker.report("r").draft == "healthy"


async def test_a_head_drafts_no_further_than_it_is_asked_to(baseline: WorkerSettings, tmp_path: Path) -> None:
    keys = {"method": "eagle3", "model": str(eagle3().write(tmp_path)), "max_model_len": 32, "adaptive": False}
    settings = replace(baseline, speculative=SpeculativeConfig.model_validate(keys))
    short, long = (request(name, prompt_length=length) for name, length in (("short", 4), ("long", 40)))
    async with started(settings) as worker, Router(worker) as router:
        results = await router.run(short, long)
    drafted = {
        name: sum(chunk.round.drafted for chunk in result.chunks if chunk.round) for name, result in results.items()
    }
    assert drafted["short"] > 0
    assert drafted["long"] == 0


async def test_a_head_for_another_target_stops_the_worker_with_one_line(
    baseline: WorkerSettings, tmp_path: Path
) -> None:
    folder = eagle3(vocab_size=61).write(tmp_path)
    speculative = SpeculativeConfig(method="eagle3", model=str(folder))
    with pytest.raises(ConfigError, match="the target's is 60, the head was made for 61"):
        await TargetWorker.start(replace(baseline, speculative=speculative))
    with pytest.raises(ConfigError, match="no such folder"):
        await TargetWorker.start(replace(baseline, speculative=speculative.model_copy(update={"model": "/nowhere"})))

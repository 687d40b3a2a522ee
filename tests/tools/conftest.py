"""A fleet of two tiny models behind the real router, on a real port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import LlamaConfig

from deploy.bench.direct_fleet import DirectFleet, listening
from deploy.bench.recorder import Recorder
from fleet.config import DrillConfig, EngineConfig, ModelConfig, SpeculativeConfig
from fleet.tokenizer import Tokenizer
from replicas.target_worker import WorkerSettings
from router.intake import ServedModel
from tests.replicas.worker_router import started
from tests.tiny_models import SIZES, tiny_model_folder

CONTEXT = 1024
NGRAM = SpeculativeConfig(method="ngram", num_speculative_tokens=4, prompt_lookup_min=1, adaptive=False)
STEP = DrillConfig(step_delay_ms=20)
"""Steps that take long enough for what a client adds not to matter, also where others want the cores."""


@dataclass
class ServedFleet:
    """A running fleet; `stable` is the path that takes all requests."""

    url: str
    folder: Path
    """Model and tokenizer."""
    recorder: Recorder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = LlamaConfig(**{**SIZES, "max_position_embeddings": CONTEXT})
    return tiny_model_folder(tmp_path_factory.mktemp("tiny") / "model", config)


@asynccontextmanager
async def fleet_on(model_folder: Path, journal: Path, stable: str) -> AsyncIterator[ServedFleet]:
    """Both paths, all requests on `stable`."""
    engine = EngineConfig(max_num_batched_tokens=256, kv_cache_tokens=8 * CONTEXT, threads=1, device="cpu")
    model = ModelConfig(model=str(model_folder), dtype="float32")
    async with AsyncExitStack() as stack:
        addresses = {}
        for path, speculative in (("baseline", None), ("speculative", NGRAM)):
            worker = await stack.enter_async_context(
                started(WorkerSettings(path, model, engine, speculative, drill=STEP))
            )
            addresses[path] = worker.tokens_address
        fleet = DirectFleet(
            Tokenizer.load(model_folder),
            ServedModel("tiny", str(model_folder), max_model_len=CONTEXT, created=0),
            addresses,
            stable,
            journal,
        )
        recorder = Recorder(await stack.enter_async_context(fleet.app()))
        url = await stack.enter_async_context(listening(recorder))
        yield ServedFleet(url, model_folder, recorder)


@pytest.fixture
async def speculative(model_folder: Path, tmp_path: Path) -> AsyncIterator[ServedFleet]:
    async with fleet_on(model_folder, tmp_path / "journal.sqlite3", "speculative") as served:
        yield served

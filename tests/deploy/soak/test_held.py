"""Under load every place where a request leaves a trace is seen; a name that has changed would always be empty."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaConfig

from deploy.bench.growth import container_sizes
from deploy.bench.soak.drafts import InnerDraft
from deploy.bench.soak.held import DRAFTS, NOTHING, SLOTS, STREAMS, held
from deploy.bench.soak.pair import Pair
from fleet.config import EngineConfig, ModelConfig, SpeculativeConfig
from fleet.generation import GenerationRequest, SamplingParams
from replicas.draft_worker import DraftSettings
from replicas.target_worker import TargetWorker, WorkerSettings
from tests.replicas.heads.checkpoints import eagle
from tests.tiny import VOCABULARY
from tests.tiny_models import SIZES, tiny_model_folder

REQUEST = GenerationRequest("a", (3, 4, 5), SamplingParams(seed=1, max_tokens=150, temperature=0.0, ignore_eos=True))
BRIEF = {"StreamLedger._ended"}
"""Filled only between an end and what follows it."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> WorkerSettings:
    sizes = {**SIZES, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 8, "vocab_size": VOCABULARY}
    folder = tiny_model_folder(tmp_path_factory.mktemp("tiny") / "target", LlamaConfig(**sizes))
    engine = EngineConfig(device="cpu", kv_cache_tokens=600, threads=1)
    return WorkerSettings("soak", ModelConfig(model=str(folder), dtype="float32"), engine)


async def names_under_load(settings: WorkerSettings) -> set[str]:
    """The containers that are not empty while a request is under way; afterwards nothing must be held."""
    target = await TargetWorker.start(settings)
    draft = None
    if target.verify_address is not None:
        assert settings.speculative is not None
        draft = InnerDraft(DraftSettings(settings.model, settings.speculative, settings.engine, target.verify_address))
        await draft.bring()
    pair = Pair(target, draft)
    largest: Counter[str] = Counter()
    seen = NOTHING
    try:
        async with aclosing(pair.client.generate(REQUEST)) as chunks:
            async for _ in chunks:
                largest |= Counter(container_sizes(pair.roots()))
                now = held(pair.roots())
                seen = max(seen, now, key=lambda each: (each.slots, each.blocks, each.streams, each.drafts))
        await target.finished(REQUEST.request_id, 5.0)
        async with asyncio.timeout(20):
            while not held(pair.roots()).is_nothing:  # noqa: ASYNC110 (it happens in other threads)
                await asyncio.sleep(0.01)
    finally:
        await pair.close()
    assert min(seen.slots, seen.blocks, seen.streams, seen.drafts) > 0
    return set(+largest)


async def test_every_name_is_seen_while_a_request_is_under_way(settings: WorkerSettings, tmp_path: Path) -> None:
    head = str(eagle(vocab_size=VOCABULARY).drop("embed_tokens.weight").write(tmp_path / "eagle"))
    proposers: list[dict[str, object]] = [
        {"method": "draft_model", "layers": 2, "deadline_floor_ms": 2000, "deadline_ceiling_ms": 20_000},
        {"method": "eagle", "model": head},
        {"method": "ngram"},
        {"method": "suffix"},
    ]
    seen: set[str] = set()
    for keys in proposers:
        speculative = SpeculativeConfig.model_validate({**keys, "adaptive": True})
        seen |= await names_under_load(replace(settings, speculative=speculative))
    assert {*SLOTS, *STREAMS, *DRAFTS} - BRIEF - seen == set()

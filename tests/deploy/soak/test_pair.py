"""An hour in small: nothing stays taken and nothing grows, whatever clients and drafts do on the way."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaConfig

from deploy.bench import growth
from deploy.bench.growth import grown
from deploy.bench.soak.held import NOTHING
from deploy.bench.soak.pair import Load, soak
from fleet.config import EngineConfig, ModelConfig, SpeculativeConfig
from replicas.engine.kv_extents import Extent, KvExtents
from replicas.stream_ledger import StreamLedger
from replicas.target_worker import WorkerSettings
from tests.replicas.heads.checkpoints import eagle
from tests.tiny import VOCABULARY
from tests.tiny_models import SIZES, tiny_model_folder

KERNELS_MIB = 400.0
"""What oneDNN's compiled kernels may still add per 1,000 requests in so short a run."""
LOAD = Load(clients=8, requests=30, longest_prompt=90)
SMALL = Load(clients=4, requests=16, longest_prompt=60)


def settings_of(folder: Path, speculative: SpeculativeConfig, kv_tokens: int = 420) -> WorkerSettings:
    sizes = {**SIZES, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 8, "vocab_size": VOCABULARY}
    return WorkerSettings(
        "soak",
        ModelConfig(model=str(tiny_model_folder(folder / "model", LlamaConfig(**sizes))), dtype="float32"),
        EngineConfig(device="cpu", kv_cache_tokens=kv_tokens, max_num_seqs=8, max_num_batched_tokens=64, threads=1),
        speculative,
    )


def turns(count: int) -> Callable[[int], bool]:
    return lambda done: done < count


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills_draft", [False, True])
async def test_turns_of_mixed_requests_and_dying_drafts_leave_nothing_behind(
    kills_draft: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the rejection rule, which sends and keeps all that the coupled one does, and distributions."""
    monkeypatch.setattr(growth, "SLOPE_SLACK", KERNELS_MIB)
    speculative = SpeculativeConfig(
        method="draft_model",
        layers=2,
        acceptance="rejection",
        deadline_floor_ms=2000,
        deadline_ceiling_ms=20_000,
        adaptive=False,
    )
    soaked = await soak(settings_of(tmp_path, speculative), LOAD, turns(6), kills_draft=kills_draft)
    assert soaked.left == NOTHING
    assert grown(soaked.readings) == []
    assert soaked.restarts == 6
    assert soaked.preemptions > 0
    assert soaked.drafted > 0
    assert soaked.outcomes["answered"] > 80
    assert soaked.outcomes["left"] > 15
    assert set(soaked.outcomes) == {"answered", "left", "BadRequest"}


async def test_a_head_in_the_targets_process_leaves_nothing_behind(tmp_path: Path) -> None:
    head = eagle(vocab_size=VOCABULARY).drop("embed_tokens.weight").write(tmp_path / "eagle")
    speculative = SpeculativeConfig.model_validate(
        {"method": "eagle", "model": str(head), "tree": [2, 2], "adaptive": False}
    )
    soaked = await soak(settings_of(tmp_path, speculative, kv_tokens=260), SMALL, turns(1))
    assert soaked.left == NOTHING
    assert soaked.requests == SMALL.requests
    assert soaked.drafted > 0
    assert soaked.restarts == 0


def forget_one_block(patch: pytest.MonkeyPatch) -> None:
    free, calls = KvExtents.free, itertools.count()

    def forgetful(extents: KvExtents, extent: Extent) -> None:
        if next(calls) != 5:
            free(extents, extent)

    patch.setattr(KvExtents, "free", forgetful)


def remember_every_end_twice(patch: pytest.MonkeyPatch) -> None:
    end = StreamLedger.end

    def twice(ledger: StreamLedger, request_id: str) -> None:
        end(ledger, request_id)
        ledger._ended[f"{request_id} again"] = None

    patch.setattr(StreamLedger, "end", twice)


@pytest.mark.parametrize(("plant", "kind"), [(forget_one_block, "blocks"), (remember_every_end_twice, "streams")])
async def test_a_planted_leak_is_found_and_the_soak_goes_no_further(
    plant: Callable[[pytest.MonkeyPatch], None], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    load = replace(SMALL, requests=8, rest_seconds=0.5)
    soaked = await soak(settings_of(tmp_path, SpeculativeConfig(method="ngram")), load, turns(3))
    assert getattr(soaked.left, kind) > 0
    assert len(soaked.readings) == 1

"""An hour in small: nothing stays taken and nothing grows, whatever clients and drafts do on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.bench.growth import grown
from deploy.bench.soak import CLIENTS, KV_TOKENS, soak
from fleet.config import EngineConfig, ModelConfig, SpeculativeConfig
from replicas.target_worker import WorkerSettings
from tests.tiny_models import tiny_model_folder

KERNELS_BYTES = 192 * 2**20
"""What oneDNN's compiled kernels may still add in so short a run."""


@pytest.mark.slow
async def test_turns_of_mixed_requests_leave_nothing_behind(tmp_path: Path) -> None:
    """Under the rejection rule, which sends and keeps all that the coupled one does, and distributions."""
    settings = WorkerSettings(
        "soak",
        ModelConfig(model=str(tiny_model_folder(tmp_path / "model")), dtype="float32"),
        EngineConfig(kv_cache_tokens=KV_TOKENS, max_num_seqs=CLIENTS, max_num_batched_tokens=64),
        SpeculativeConfig(method="draft_model", layers=2, acceptance="rejection", deadline_ceiling_ms=20_000),
    )
    pair, readings = await soak(settings, turns=6, requests_per_turn=60)
    assert grown(readings, KERNELS_BYTES) == []
    assert pair.restarts == 6
    assert pair.target.report("soak").preemptions > 0
    assert pair.outcomes["answered"] > 100
    assert pair.outcomes["left"] > 20
    assert pair.outcomes["BadRequest"] > 0
    assert set(pair.outcomes) == {"answered", "left", "BadRequest"}

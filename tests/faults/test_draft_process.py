"""A draft worker as a process of its own, ended by the hard signals."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch

from fleet.tokenizer import Tokenizer
from replicas.speculation.pairing import Identity
from replicas.speculation.proposer import ProposerHealth
from replicas.speculation.target_session import TargetSettings
from tests.replicas.verify_rig import ToyTarget, all_true, eventually, serving, steps_until
from tests.tiny import VOCABULARY
from tests.tiny_models import tiny_model_folder

CONNECT_SECONDS = 120.0


@asynccontextmanager
async def draft_process(settings: dict[str, object]) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "replicas.draft_worker",
        "--settings",
        json.dumps(settings),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def settings_for(folder: Path, address: str, **speculative: object) -> dict[str, object]:
    return {
        "model": {"model": str(folder), "dtype": "float32"},
        "speculative": {"method": "draft_model", "num_speculative_tokens": 4, "draft_threads": 1, **speculative},
        "engine": {"kv_cache_tokens": 1024},
        "verify_address": address,
    }


def target_settings(folder: Path) -> TargetSettings:
    tokenizer = Tokenizer.load(folder)
    return TargetSettings(Identity("tiny", tokenizer.content_hash, tokenizer.vocab_size, 256), 0.05, 0.5)


async def steps_through(target: ToyTarget, condition: Callable[[], bool]) -> None:
    """Step fresh sequences at the pace of a real model until the condition holds."""
    target.close()
    target.open(1, 2)
    await steps_until(target, lambda _: condition(), limit=200, pause=0.05)
    assert all_true(target)


@pytest.mark.slow
async def test_killed_frozen_and_started_again_it_changes_no_text(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    folder = tiny_model_folder(tmp_path / "tiny")
    async with serving(target_settings(folder)) as (server, address):
        proposer = server.proposer
        target = ToyTarget(proposer, VOCABULARY)

        def is_healthy() -> bool:
            return proposer.state().health == ProposerHealth.HEALTHY

        async with draft_process(settings_for(folder, address, layers=2)) as process:
            await eventually(is_healthy, CONNECT_SECONDS)
            await steps_through(target, lambda: proposer.counters.rounds >= 3)
            process.send_signal(signal.SIGSTOP)
            await steps_through(target, lambda: proposer.state().health == ProposerHealth.DEGRADED)
            process.send_signal(signal.SIGCONT)
            await steps_through(target, is_healthy)
            process.kill()
            await eventually(lambda: proposer.state().health == ProposerHealth.LOST)
            await steps_through(target, lambda: True)
        rounds = proposer.counters.rounds
        async with draft_process(settings_for(folder, address, model=str(folder))) as process:
            await eventually(is_healthy, CONNECT_SECONDS)
            await steps_through(target, lambda: proposer.counters.rounds >= rounds + 3)
            process.terminate()
            assert await process.wait() == 0
        assert proposer.counters.wrong == 0


@pytest.mark.slow
async def test_a_draft_that_cannot_work_says_why_in_one_line(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path / "tiny")
    stranger = target_settings(folder)
    identity = Identity("other", "another tokenizer", stranger.identity.vocab_size, 256)
    async with serving(TargetSettings(identity, 0.05, 0.5)) as (_, address):
        for settings, reason in (
            (settings_for(folder, address, layers=2), "the same size but different tokens"),
            (settings_for(folder, address, layers=9), "layers 9 exceeds the model's 4"),
            (settings_for(tmp_path / "nothing", address, layers=2), "no such folder"),
        ):
            async with draft_process(settings) as process:
                _, errors = await process.communicate()
                assert process.returncode not in (0, None)
                assert reason in errors.decode().splitlines()[-1]
                assert "Traceback" not in errors.decode()

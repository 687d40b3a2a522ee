from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.bench.engine_speed import VllmArm
from fleet.config import EngineConfig
from fleet.errors import ConfigError

STAND_IN = """
import time

now = 0.0
time.perf_counter = lambda: now

class SamplingParams:
    def __init__(self, **settings):
        self.max_tokens = settings["max_tokens"]
        assert settings["temperature"] == 0.0 and settings["ignore_eos"]

class LLM:
    def __init__(self, folder, **settings):
        print("libraries print this and that")

    def generate(self, prompts, sampling, use_tqdm):
        assert [prompt["prompt_token_ids"] for prompt in prompts] == [[1, 2], [3, 4]]
        global now
        now += 0.01 * sampling.max_tokens
"""


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VllmArm]:
    (tmp_path / "vllm.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    arm = VllmArm(sys.executable, tmp_path, "TinyForCausalLM", EngineConfig(), "float32")
    yield arm
    arm.close()


def test_vllm_is_timed_in_an_environment_of_its_own(vllm: VllmArm) -> None:
    run = vllm([(1, 2), (3, 4)], 6)
    assert (run.sequences, run.max_tokens) == (2, 6)
    assert run.prefill_seconds == pytest.approx(0.01)
    # Five further tokens in 0.01 s each, for both sequences at once.
    assert run.decode_rate == pytest.approx(200)


def test_an_environment_without_vllm_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="vLLM did not start under"):
        VllmArm(sys.executable, tmp_path, "TinyForCausalLM", EngineConfig(), "float32")

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.bench.engine_report import Run, tables
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


def test_arms_are_compared_turn_by_turn() -> None:
    slow_turn, quick_turn = (Run(1, 1.0, seconds, 11, (0.8 * seconds, 0.1 * seconds)) for seconds in (2.0, 1.0))
    rival = [Run(1, 1.0, 4.0, 11), Run(1, 1.0, 2.0, 11)]
    lines = list(tables({(1, "engine"): [slow_turn, quick_turn], (1, "vllm"): rival}, "engine", 512))
    # Both arms halved their time in the second turn: the ratio did not move.
    assert "| 1 sequence | vllm | 3.8 (2.5 – 5.0) | **2.00 (2.00 – 2.00)** |" in lines
    assert "| 1 sequence | 100.00 | 80.00 | 10.00 | 10.00 |" in lines


def test_prefill_is_rated_by_the_prompt() -> None:
    runs = {(0, "engine"): [Run(1, 0.5, 1.0, 2)], (0, "transformers"): [Run(1, 1.0, 1.0, 2)]}
    lines = list(tables(runs, "engine", 512))
    assert "| prefill | transformers | 512.0 (512.0 – 512.0) | **2.00 (2.00 – 2.00)** |" in lines
    assert not any(line.startswith("| prefill |") for line in lines[lines.index("") :])

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.bench.engine_arms import Arm, Prompts, VllmArm
from deploy.bench.engine_report import Run, goals, tables
from deploy.bench.engine_speed import measure
from fleet.config import EngineConfig
from fleet.errors import ConfigError
from fleet.tokenizer import Tokenizer
from tests.tiny import tiny_tokenizer_folder

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


def test_vllm_that_dies_in_mid_run_is_one_line(vllm: VllmArm) -> None:
    vllm._process.kill()
    vllm._process.wait()
    with pytest.raises(ConfigError, match="ended in the middle of its work; what it printed is above"):
        vllm([(1, 2), (3, 4)], 6)


def test_an_interpreter_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="VLLM_PYTHON=/nowhere/python cannot be run"):
        VllmArm("/nowhere/python", tmp_path, "TinyForCausalLM", EngineConfig(), "float32")


def test_arms_take_turns_in_both_directions_and_the_first_turn_is_warm_up(tmp_path: Path) -> None:
    called: list[str] = []

    def arm(name: str) -> Arm:
        def run(prompts: Prompts, max_tokens: int) -> Run:
            called.append(name)
            return Run(len(prompts), 1.0, 1.0, max_tokens)

        return run

    tokenizer = Tokenizer.load(tiny_tokenizer_folder(tmp_path))
    arguments = Namespace(repetitions=2, sequences=[1], tokens=4)
    runs = measure({"a": arm("a"), "b": arm("b")}, tokenizer, arguments)
    assert "".join(called) == "baba" + "abab" + "baba"  # one long prompt and one load in each turn
    assert {place: len(found) for place, found in runs.items()} == {(s, name): 2 for s in (0, 1) for name in "ab"}


@pytest.mark.parametrize(
    ("speed", "verdict"),
    [
        (1.2, "reached, 1.20"),
        (0.8, "missed, 0.80"),
    ],
)
def test_the_goal_is_told_by_the_interval_of_the_ratio(speed: float, verdict: str) -> None:
    drift = (1.0, 1.1, 1.3, 1.2, 1.4)
    wobble = (1.0, 1.01, 0.99, 1.02, 0.98)
    runs = {
        (4, "engine"): [Run(4, 1.0, each * by / speed, 64) for each, by in zip(drift, wobble, strict=True)],
        (4, "vllm"): [Run(4, 1.0, each, 64) for each in drift],
    }
    (said,) = goals(runs, "engine", "vllm")
    assert said.startswith(f"- at least 1.0 × vllm, 4 sequences: {verdict} (")


def test_a_goal_that_the_interval_contains_is_left_open_and_one_not_measured_is_said_to_be() -> None:
    ours = [Run(1, 1.0, each, 64) for each in (0.9, 1.1, 1.0, 0.92, 1.08)]
    runs = {(1, "engine"): ours, (1, "vllm"): [Run(1, 1.0, 1.0, 64)] * 5}
    (said,) = goals(runs, "engine", "vllm")
    assert "neither reached nor missed for certain" in said
    assert "vllm was not measured" in next(goals({(1, "engine"): ours}, "engine", "vllm"))
    (said,) = goals({place: found[:4] for place, found in runs.items()}, "engine", "vllm")
    assert "too few turns" in said


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

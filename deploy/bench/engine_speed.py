"""How fast is the engine alone, without router, Ray or speculation? Beside it `transformers` and vLLM, in turns."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from deploy.bench.devices import settle
from deploy.bench.document import present
from deploy.bench.engine_report import Run, Runs, tables
from deploy.bench.options import count
from deploy.bench.prompts import load_prompts
from deploy.bench.vllm_worker import READY
from fleet.clock import SystemClock
from fleet.config import DEFAULT_MODEL, EngineConfig, ModelConfig
from fleet.errors import ConfigError
from fleet.generation import GenerationRequest, SamplingParams
from fleet.tokenizer import Tokenizer
from replicas.engine.linear import compute_dtype
from replicas.engine.loop import Engine
from replicas.engine.model import Forward, Model, Segment
from replicas.engine.sampling import Draw, Sample, Sampler
from replicas.engine.step import StepRunner
from replicas.model_store import resolve_model
from replicas.target_model import TargetModel, load_target

MARKS = "bench-engine"
OWNER = "bench"
ENGINE = "engine"
PROMPT_TOKENS = 40
LONG_PROMPT_TOKENS = 512


Prompts = Sequence[tuple[int, ...]]
Arm = Callable[[Prompts, int], Run]
"""Greedy answers of exactly so many tokens."""


class _TimedModel:
    """A model that knows how long it ran."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.vocab_size, self.max_model_len, self.kv_tokens = model.vocab_size, model.max_model_len, model.kv_tokens
        self.seconds = 0.0

    def forward(self, segments: Sequence[Segment]) -> Forward:
        began = time.perf_counter()
        answer = self._model.forward(segments)
        settle()  # else the time would be the sampler's, who is the first to wait
        self.seconds += time.perf_counter() - began
        return answer

    def move(self, source: int, target: int, length: int) -> None:
        self._model.move(source, target, length)

    def keep(self, start: int, rows: Sequence[int]) -> None:
        self._model.keep(start, rows)


class _TimedSampler(Sampler):
    """A sampler that knows how long it ran."""

    seconds = 0.0

    def sample(self, logits: Tensor, draws: Sequence[Draw]) -> list[Sample]:
        began = time.perf_counter()
        answer = super().sample(logits, draws)
        self.seconds += time.perf_counter() - began
        return answer


class EngineArm:
    """Our engine, stepped as its thread does."""

    def __init__(self, target: TargetModel, config: EngineConfig) -> None:
        self._model = _TimedModel(target.model)
        self._sampler = _TimedSampler(target.vocab_size, target.tokenizer.eos_token_ids)
        runner = StepRunner(self._model, self._sampler)
        self._engine = Engine(
            self._model, target.tokenizer, config, runner=runner, speculator=None, clock=SystemClock()
        )

    def __call__(self, prompts: Prompts, max_tokens: int) -> Run:
        sampling = SamplingParams(seed=0, max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        for index, prompt in enumerate(prompts):
            self._engine.submit(GenerationRequest(str(index), prompt, sampling), OWNER)
        began = time.perf_counter()
        waiting = {str(index) for index in range(len(prompts))}
        while waiting:
            waiting -= {output.request_id for output in self._engine.step().get(OWNER, [])}
        started, before = time.perf_counter(), (self._model.seconds, self._sampler.seconds)
        while self._engine.has_work:
            self._engine.step()
        ended = time.perf_counter()
        parts = self._model.seconds - before[0], self._sampler.seconds - before[1]
        return Run(len(prompts), started - began, ended - started, max_tokens, parts)


class TransformersArm:
    """`transformers` in eager mode, as its own documentation has it; the prompts are equally long."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM  # seconds to import, and only this arm needs it

        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        self.architecture = type(self._model).__name__

    def __call__(self, prompts: Prompts, max_tokens: int) -> Run:
        prefill = self._generate(prompts, 1)
        whole = self._generate(prompts, max_tokens)
        return Run(len(prompts), prefill, whole - prefill, max_tokens)

    @torch.inference_mode()
    def _generate(self, prompts: Prompts, tokens: int) -> float:
        ids = torch.tensor(prompts)
        began = time.perf_counter()
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return time.perf_counter() - began


class VllmArm:
    """vLLM's CPU build, in the environment whose interpreter `$VLLM_PYTHON` names."""

    def __init__(self, python: str, folder: Path, architecture: str, config: EngineConfig, dtype: str) -> None:
        script = Path(__file__).with_name("vllm_worker.py")
        self._process = subprocess.Popen(
            [python, "-P", str(script), str(folder), architecture, dtype, str(config.max_num_seqs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if self._read() != READY:
            self.close()
            raise ConfigError(f"vLLM did not start under {python}; what it printed is above")

    def __call__(self, prompts: Prompts, max_tokens: int) -> Run:
        prefill = self._generate(prompts, 1)
        return Run(len(prompts), prefill, self._generate(prompts, max_tokens) - prefill, max_tokens)

    def close(self) -> None:
        """End the process and those that it started."""
        with self._process:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _generate(self, prompts: Prompts, tokens: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        return float(json.loads(self._read())["seconds"])

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def cut_prompts(tokenizer: Tokenizer, count: int, length: int) -> list[tuple[int, ...]]:
    """So many different prompts of equal length, cut from the shipped ones laid end to end."""
    text = "\n\n".join(turn for prompt in load_prompts() for turn in prompt.turns)
    ids = tokenizer.encode(text, add_special_tokens=False)
    return [tuple(ids[index * length : (index + 1) * length]) for index in range(count)]


def measure(arms: dict[str, Arm], tokenizer: Tokenizer, arguments: argparse.Namespace) -> Runs:
    """All loads and arms in turns, as often as is asked for; a first turn is warm-up."""
    found: Runs = defaultdict(list)
    for repetition in range(arguments.repetitions + 1):
        for sequences in (0, *arguments.sequences):
            length = PROMPT_TOKENS if sequences else LONG_PROMPT_TOKENS
            prompts = cut_prompts(tokenizer, max(sequences, 1), length)
            for name, arm in arms.items():
                run = arm(prompts, arguments.tokens if sequences else 2)
                if repetition:
                    found[sequences, name].append(run)
    return found


def main() -> None:
    """Decode and prefill speed of the engine, and where a step's time goes."""
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.engine_speed", description=main.__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--sequences", type=count, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--tokens", type=count, default=64)
    parser.add_argument("--repetitions", type=count, default=3)
    parser.add_argument("--into", type=Path, help="a document with the marks, such as docs/benchmarks.md")
    arguments = parser.parse_args()
    present(lambda: [*tables(_measured(arguments), ENGINE, LONG_PROMPT_TOKENS), ""], arguments.into, MARKS)


def _measured(arguments: argparse.Namespace) -> Runs:
    model = ModelConfig(model=arguments.model, dtype=arguments.dtype)
    config = EngineConfig(device="cpu", max_num_seqs=max(arguments.sequences))
    folder = resolve_model(model, _say)
    target = load_target(model.model_copy(update={"model": str(folder)}), config, _say)
    transformers = TransformersArm(folder, compute_dtype(arguments.dtype, torch.device("cpu")))
    arms: dict[str, Arm] = {ENGINE: EngineArm(target, config), "transformers": transformers}
    vllm = os.environ.get("VLLM_PYTHON")
    with ExitStack() as stack:
        if vllm:
            worker = VllmArm(vllm, folder, transformers.architecture, config, arguments.dtype)
            stack.callback(worker.close)
            arms["vllm"] = worker
        return measure(arms, target.tokenizer, arguments)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    main()

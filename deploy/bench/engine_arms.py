"""Who is measured: our engine stepped as its thread does, `transformers`, and vLLM in an environment of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import record_function

from deploy.bench.devices import settle
from deploy.bench.engine_profile import FORWARD, SAMPLER, Shares, profiled
from deploy.bench.engine_report import Run
from deploy.bench.vllm_worker import READY
from fleet.clock import SystemClock
from fleet.config import EngineConfig
from fleet.errors import ConfigError
from fleet.generation import GenerationRequest, SamplingParams
from replicas.engine.loop import Engine
from replicas.engine.model import Forward, Model
from replicas.engine.packing import Segment
from replicas.engine.sampling import Draw, Sample, Sampler
from replicas.engine.step import StepRunner
from replicas.target_model import TargetModel

OWNER = "bench"

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
        with record_function(FORWARD):
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
        with record_function(SAMPLER):
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
        prefill, before = self._prefill(prompts, max_tokens), (self._model.seconds, self._sampler.seconds)
        decode = self._decode()
        parts = self._model.seconds - before[0], self._sampler.seconds - before[1]
        return Run(len(prompts), prefill, decode, max_tokens, parts)

    def profile(self, prompts: Prompts, max_tokens: int) -> Shares:
        """Where the time of the decoding steps goes."""
        self._prefill(prompts, max_tokens)
        return profiled(self._decode)

    def _prefill(self, prompts: Prompts, max_tokens: int) -> float:
        """Seconds until every sequence has its first token."""
        sampling = SamplingParams(seed=0, max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        for index, prompt in enumerate(prompts):
            self._engine.submit(GenerationRequest(str(index), prompt, sampling), OWNER)
        began = time.perf_counter()
        waiting = {str(index) for index in range(len(prompts))}
        while waiting:
            waiting -= {output.request_id for output in self._engine.step().get(OWNER, [])}
        return time.perf_counter() - began

    def _decode(self) -> float:
        """Seconds for all other tokens."""
        began = time.perf_counter()
        while self._engine.has_work:
            self._engine.step()
        return time.perf_counter() - began


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
        """Returns once the model is loaded: minutes, the first time. Raises ConfigError."""
        script = Path(__file__).with_name("vllm_worker.py")
        settings = (folder, architecture, dtype, config.max_num_seqs, torch.get_num_threads())
        self._python = python
        try:
            self._process = subprocess.Popen(
                [python, "-P", str(script), *(str(setting) for setting in settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"VLLM_PYTHON={python} cannot be run: {error}") from error
        if self._read() != READY:
            self.close()
            raise ConfigError(f"vLLM did not start under {python}; what it printed is above")

    def __call__(self, prompts: Prompts, max_tokens: int) -> Run:
        prefill = self._generate(prompts, 1)
        return Run(len(prompts), prefill, self._generate(prompts, max_tokens) - prefill, max_tokens)

    def close(self) -> None:
        """End the process and those that it started, as far as it has not died of itself."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()

    def _generate(self, prompts: Prompts, tokens: int) -> float:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            answer = ""
        else:
            answer = self._read()
        if not answer:
            raise ConfigError(f"vLLM under {self._python} ended in the middle of its work; what it printed is above")
        return float(json.loads(answer)["seconds"])

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

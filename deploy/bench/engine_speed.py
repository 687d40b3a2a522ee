"""How fast is the engine alone, without router, Ray or speculation? Beside it `transformers` and vLLM, in turns."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import torch

from deploy.bench.document import present
from deploy.bench.engine_arms import Arm, EngineArm, TransformersArm, VllmArm
from deploy.bench.engine_profile import table as profile_table
from deploy.bench.engine_report import Runs, goals, tables
from deploy.bench.options import count
from deploy.bench.prompts import load_prompts
from fleet.config import DEFAULT_MODEL, EngineConfig, ModelConfig
from fleet.tokenizer import Tokenizer
from replicas.engine.linear import compute_dtype
from replicas.model_store import resolve_model
from replicas.target_model import load_target

MARKS = "bench-engine"
ENGINE = "engine"
VLLM = "vllm"
PROMPT_TOKENS = 40
LONG_PROMPT_TOKENS = 512
PROFILED_TOKENS = 16
SPIN_SECONDS = 0.3
"""Pause before each arm's turn: threads of the one before may wait for work by spinning for 200 ms."""


def cut_prompts(tokenizer: Tokenizer, count: int, length: int) -> list[tuple[int, ...]]:
    """So many different prompts of equal length, cut from the shipped ones laid end to end."""
    text = "\n\n".join(turn for prompt in load_prompts() for turn in prompt.turns)
    ids = tokenizer.encode(text, add_special_tokens=False)
    return [tuple(ids[index * length : (index + 1) * length]) for index in range(count)]


def measure(
    arms: dict[str, Arm], tokenizer: Tokenizer, arguments: argparse.Namespace, pause_seconds: float = 0.0
) -> Runs:
    """All loads and arms in turns A B C, C B A, as often as is asked for; a first turn is warm-up."""
    found: Runs = defaultdict(list)
    for repetition in range(arguments.repetitions + 1):
        for sequences in (0, *arguments.sequences):
            length = PROMPT_TOKENS if sequences else LONG_PROMPT_TOKENS
            prompts = cut_prompts(tokenizer, max(sequences, 1), length)
            for name in list(arms)[:: 1 if repetition % 2 else -1]:
                time.sleep(pause_seconds)
                run = arms[name](prompts, arguments.tokens if sequences else 2)
                if repetition:
                    found[sequences, name].append(run)
    return found


def main() -> None:
    """Decode and prefill speed of the engine, and where a step's time goes."""
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.engine_speed", description=main.__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--sequences", type=count, nargs="+", default=[1, 4, 8])
    parser.add_argument("--tokens", type=count, default=64)
    parser.add_argument("--repetitions", type=count, default=5, help="five or more give intervals")
    parser.add_argument("--into", type=Path, help="a document with the marks, such as docs/benchmarks.md")
    arguments = parser.parse_args()
    present(lambda: _measured(arguments), arguments.into, MARKS)


def _measured(arguments: argparse.Namespace) -> list[str]:
    model = ModelConfig(model=arguments.model, dtype=arguments.dtype)
    most = max(arguments.sequences)
    room = EngineConfig().max_num_batched_tokens
    # All prompts in one step, or the first ones would have more than their first token when decoding begins.
    config = EngineConfig(device="cpu", max_num_seqs=most, max_num_batched_tokens=max(room, most * PROMPT_TOKENS))
    folder = resolve_model(model, _say)
    target = load_target(model.model_copy(update={"model": str(folder)}), config, _say)
    transformers = TransformersArm(folder, compute_dtype(arguments.dtype, torch.device("cpu")))
    engine = EngineArm(target, config)
    arms: dict[str, Arm] = {ENGINE: engine, "transformers": transformers}
    vllm = os.environ.get("VLLM_PYTHON")
    with ExitStack() as stack:
        if vllm:
            worker = VllmArm(vllm, folder, transformers.architecture, config, arguments.dtype)
            stack.callback(worker.close)
            arms[VLLM] = worker
        runs = measure(arms, target.tokenizer, arguments, SPIN_SECONDS)
    profile = {
        sequences: engine.profile(cut_prompts(target.tokenizer, sequences, PROMPT_TOKENS), PROFILED_TOKENS)
        for sequences in arguments.sequences
    }
    return [
        f"{torch.get_num_threads()} threads; answers of {arguments.tokens} tokens, {arguments.repetitions} turns.",
        "",
        *tables(runs, ENGINE, LONG_PROMPT_TOKENS),
        "",
        *profile_table(profile),
        "",
        *goals(runs, ENGINE, VLLM),
        "",
    ]


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    main()

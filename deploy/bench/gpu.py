"""What is the engine worth on this GPU? Correctness first, then graphs beside none, the price of rows, proposers."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from deploy.bench import verify_cost
from deploy.bench.document import present
from deploy.bench.engine_arms import Arm, EngineArm
from deploy.bench.engine_report import Runs, tables
from deploy.bench.engine_speed import LONG_PROMPT_TOKENS, PROMPT_TOKENS, measure
from deploy.bench.options import count
from fleet.config import DEFAULT_MODEL, EngineConfig, ModelConfig
from fleet.errors import ConfigError
from replicas.target_model import TargetModel, load_target

MARKS = "bench-gpu"
NO_GPU = 2
GRAPHS, EAGER = "graphs", "eager"
ROOT = Path(__file__).parents[2]
TESTS = "tests/replicas/engine/test_on_gpu.py"
CONTEXT_TOKENS = 512
"""Cached before the rows whose price is measured."""
CHUNK_TOKENS = 2048
PROPOSERS = "proposers.jsonl"
EVERYWHERE = ("ngram", "suffix")
"""Proposers that need no model; the shipped ones belong to the default model."""
SHIPPED = ("draft_model", "eagle", "eagle3", "medusa", "medusa/tree")


def main() -> None:
    """Tests on the GPU, speed with and without CUDA graphs, what verifying costs, and a short run of the proposers."""
    arguments = _parser().parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("this machine has no GPU that torch can use: nothing was measured\n")
        raise SystemExit(NO_GPU)
    present(lambda: _report(arguments), arguments.into, MARKS)


def _report(arguments: argparse.Namespace) -> Iterator[str]:
    """All tables; the figures also as JSON under `arguments.out`. Raises ConfigError where the tests fail."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    machine = machine_facts()
    yield f"{machine['gpu']}, torch {machine['torch']}, {arguments.model} in {arguments.dtype}."
    yield ""
    if not arguments.no_tests:
        _run_tests()
    runs, samples = _measured(arguments)
    figures = {
        "machine": machine,
        "model": arguments.model,
        "dtype": arguments.dtype,
        "engine": [
            {**asdict(run), "sequences": sequences, "arm": arm}
            for (sequences, arm), all_runs in runs.items()
            for run in all_runs
        ],
        "verify": [
            {"sequences": sequences, "rows": rows, "seconds": value}
            for (sequences, rows), value in verify_cost.medians(samples).items()
        ],
    }
    (arguments.out / "engine.json").write_text(json.dumps(figures, indent=2) + "\n")
    yield from tables(runs, GRAPHS, LONG_PROMPT_TOKENS)
    yield ""
    yield from verify_cost.table(samples)
    yield ""
    yield from _proposers(arguments)


def machine_facts() -> dict[str, str | None]:
    """What the figures depend on beside the code."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return {"gpu": gpu, "torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}


def _run_tests() -> None:
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "gpu", TESTS], cwd=ROOT, stdout=sys.stderr)
    if done.returncode:
        raise ConfigError("the tests on this GPU fail, so no speed of it means anything; what they said is above")


def _measured(arguments: argparse.Namespace) -> tuple[Runs, verify_cost.Samples]:
    """Speed with and without graphs, in turns; then, with them, the price of rows."""
    most = max(arguments.sequences)
    graphs, eager = (_target(arguments, most, enforce_eager=off) for off in (False, True))
    config = _engine(arguments, most, enforce_eager=False)
    arms: dict[str, Arm] = {GRAPHS: EngineArm(graphs, config), EAGER: EngineArm(eager, config)}
    runs = measure(arms, graphs.tokenizer, arguments)
    rows = range(1, verify_cost.MOST_ROWS + 1)
    context = arguments.context
    return runs, verify_cost.step_samples(graphs.model, arguments.sequences, rows, context, arguments.repetitions)


def _target(arguments: argparse.Namespace, most: int, *, enforce_eager: bool) -> TargetModel:
    model = ModelConfig(model=arguments.model, dtype=arguments.dtype)
    return load_target(model, _engine(arguments, most, enforce_eager=enforce_eager), say)


def _engine(arguments: argparse.Namespace, most: int, *, enforce_eager: bool) -> EngineConfig:
    """Room for the longest that any part caches of each sequence."""
    longest = max(PROMPT_TOKENS + arguments.tokens, arguments.context + verify_cost.MOST_ROWS)
    return EngineConfig(
        device=arguments.device,
        max_num_seqs=most,
        max_num_batched_tokens=CHUNK_TOKENS,
        kv_cache_tokens=max(most * (longest + 64), 2 * LONG_PROMPT_TOKENS),
        enforce_eager=enforce_eager,
    )


def proposers_options(arguments: argparse.Namespace) -> list[str]:
    """One short round, with a warm-up as long as what is measured: it records the graphs."""
    names = (*SHIPPED, *EVERYWHERE) if arguments.model == DEFAULT_MODEL else EVERYWHERE
    tokens = str(arguments.tokens)
    return [
        *("--model", arguments.model, "--dtype", arguments.dtype, "--device", arguments.device),
        *("--results", str(arguments.out / PROPOSERS), "--models", str(ROOT / "deploy/models"), "--proposers", *names),
        *("--categories", "chat", "--temperatures", "0", "--concurrency", "1", "8"),
        *("--rounds", "1", "--prompts", "1", "--tokens", tokens, "--warm-up-tokens", tokens),
    ]


def _proposers(arguments: argparse.Namespace) -> Sequence[str]:
    """The tables of `deploy.bench.proposers`, in a process of its own that can have all of the GPU's memory."""
    (arguments.out / PROPOSERS).unlink(missing_ok=True)
    command = [sys.executable, "-m", "deploy.bench.proposers", *proposers_options(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise ConfigError("the proposers could not be measured; what they said is above")
    return done.stdout.splitlines()


def say(line: str) -> None:
    """Progress, beside the tables."""
    sys.stderr.write(line + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.gpu", description=main.__doc__)
    add = parser.add_argument
    add("--model", default=DEFAULT_MODEL, help="the target: hub id, folder or GGUF file")
    add("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    add("--device", default="cuda", choices=("cuda", "cpu"), help="cpu only tries the command out: nothing is recorded")
    add("--sequences", type=count, nargs="+", default=[1, 4, 8, 32])
    add("--tokens", type=count, default=128, help="of each answer")
    add("--context", type=count, default=CONTEXT_TOKENS, help="tokens cached before the rows that are verified")
    add("--repetitions", type=count, default=5)
    add("--no-tests", action="store_true", help="of correctness, which come first")
    add("--out", type=Path, default=Path("build/gpu"), help="folder for the figures as JSON")
    add("--into", type=Path, help="a document with the marks, such as docs/benchmarks.md")
    return parser


if __name__ == "__main__":
    main()

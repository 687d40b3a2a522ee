"""`fleet plan`: a model's config and a GPU in, memory and predicted speed-up out."""

from __future__ import annotations

from dataclasses import asdict, replace
from enum import StrEnum
from typing import Annotated

import typer

from deploy.output import Format, Output, console, print_json
from deploy.planning.acceptance import Acceptance, parse_acceptance
from deploy.planning.architecture import Architecture
from deploy.planning.config_file import find_architecture
from deploy.planning.formats import Formats, formats_here
from deploy.planning.hardware import GpuOptions, choose_gpu, parse_size
from deploy.planning.measured import read_acceptance
from deploy.planning.plan import Question, make_plan
from deploy.planning.proposers import parse_proposer
from deploy.planning.tables import plan_view
from deploy.planning.weights import LINEAR_BYTES
from fleet.errors import ConfigError


class Device(StrEnum):
    """What serves."""

    GPU = "gpu"
    CPU = "cpu"


DEFAULT_PROPOSERS = ("eagle3", "medusa", "ngram")
DEFAULT_CONTEXTS = (512, 4096)
DEFAULT_BATCHES = (1, 16, 32, 64, 128, 256)


def plan_command(  # noqa: PLR0913 - one argument per option
    model: Annotated[str, typer.Argument(help="Folder, config.json, or a model whose facts are shipped.")],
    proposer: Annotated[
        list[str] | None,
        typer.Option(
            "--proposer",
            "-p",
            help="METHOD[:MODEL or head's FOLDER][,k=4][,acceptance=0.75][,on=own][,ahead=0.6]; repeatable.",
        ),
    ] = None,
    acceptance: Annotated[str | None, typer.Option(help="A rate, or rates by position: 0.8/0.6/0.45.")] = None,
    measured: Annotated[str | None, typer.Option(help="Take it from a /metrics URL or file instead.")] = None,
    path: Annotated[str | None, typer.Option(help="The fleet's path to take --measured from.")] = None,
    draft_length: Annotated[int, typer.Option("-k", "--draft-length", min=1, max=32)] = 4,
    gpu: Annotated[str | None, typer.Option(help="H200, H100, A100-80GB, L40S, …")] = None,
    device: Annotated[
        Device, typer.Option(help="cpu: as the engine keeps weights and cache on this machine's.")
    ] = Device.GPU,
    gpu_memory: Annotated[
        str | None, typer.Option("--gpu-memory", "--memory", help="Such as 80GiB; overrides the card's.")
    ] = None,
    bandwidth: Annotated[str | None, typer.Option(help="Memory bandwidth, such as 3.35TB/s.")] = None,
    tflops: Annotated[float | None, typer.Option(help="Dense 16-bit TFLOP/s.", min=0.001)] = None,
    tensor_parallel: Annotated[
        int,
        typer.Option("--tensor-parallel", "-t", min=1, max=64, help="GPUs for one model; this project serves on one."),
    ] = 1,
    utilisation: Annotated[float, typer.Option(help="Share of the memory to use.", min=0.01, max=1.0)] = 0.9,
    reserve: Annotated[str, typer.Option(help="Per GPU for activations, CUDA graphs and workspace.")] = "2GiB",
    dtype: Annotated[
        str | None,
        typer.Option(
            help=f"Weights: {', '.join(LINEAR_BYTES)}; default: as stored. On a CPU bfloat16, the default, or float32."
        ),
    ] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="KV cache: bfloat16 (default), float32 or fp8.")] = None,
    context: Annotated[
        list[int] | None, typer.Option("--context", "-c", min=1, help="Tokens a sequence; repeatable.")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option("--batch", "-b", min=1, help="Sequences at once; repeatable.")
    ] = None,
    round_trip_ms: Annotated[float, typer.Option(help="Between target and draft worker.", min=0.0)] = 0.5,
    output: Output = Format.TEXT,
) -> None:
    """Predict a proposer's memory and speed-up from the model's config alone: a prior, never a verdict."""
    target = find_architecture(model)
    known = _acceptance(acceptance, measured, path)
    if device is Device.CPU and tensor_parallel > 1:
        raise ConfigError("--tensor-parallel is for GPUs: on CPUs the engine splits no model")
    texts = proposer or list(DEFAULT_PROPOSERS)
    chosen = choose_gpu(GpuOptions(gpu, gpu_memory, bandwidth, tflops))
    question = Question(
        model=target,
        gpu=chosen if device is Device.GPU else replace(chosen, name="CPU"),
        formats=_formats(device, dtype, kv_dtype, target),
        tensor_parallel=tensor_parallel,
        utilisation=utilisation,
        reserve_bytes=parse_size(reserve, "--reserve"),
        contexts=_contexts(context, target.context),
        batches=tuple(sorted(set(batch or DEFAULT_BATCHES))),
        round_trip_seconds=round_trip_ms / 1000,
        proposers=tuple(parse_proposer(text, draft_length=draft_length, acceptance=known) for text in texts),
    )
    plan = make_plan(question)
    if output is Format.JSON:
        print_json(asdict(plan))
    else:
        console().print(plan_view(plan))


def _acceptance(given: str | None, measured: str | None, path: str | None) -> Acceptance | None:
    if given is not None and measured is not None:
        raise ConfigError("give --acceptance or --measured, not both")
    if measured is not None:
        return read_acceptance(measured, path)
    return parse_acceptance(given) if given is not None else None


def _contexts(asked: list[int] | None, longest: int) -> tuple[int, ...]:
    contexts = tuple(sorted(set(asked))) if asked else tuple(c for c in DEFAULT_CONTEXTS if c <= longest) or (longest,)
    if contexts[-1] > longest:
        raise ConfigError(f"--context {contexts[-1]} exceeds the model's context of {longest}")
    return contexts


def _formats(device: Device, dtype: str | None, kv_dtype: str | None, target: Architecture) -> Formats:
    if device is Device.GPU:
        return Formats(dtype or target.stored_format, _kv_element_bytes(kv_dtype or "bfloat16"))
    if kv_dtype is not None:
        raise ConfigError("--kv-dtype is for GPUs: on a CPU the engine caches in the numbers that it computes with")
    return formats_here(dtype or "bfloat16")


def _kv_element_bytes(kv_dtype: str) -> float:
    sizes = {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0, "fp8": 1.0}
    if kv_dtype not in sizes:
        raise ConfigError(f"--kv-dtype '{kv_dtype}' is not known; known: {', '.join(sizes)}")
    return sizes[kv_dtype]

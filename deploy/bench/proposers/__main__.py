"""The command: measures what is missing of a run, and prints its tables or writes them into a document."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from deploy.bench.document import present
from deploy.bench.options import at_least_one, count
from deploy.bench.prompts import SHIPPED_PROMPTS, Prompt, load_prompts
from deploy.bench.proposers.arms import Served, stage
from deploy.bench.proposers.block import Measured, requests_of, run_block
from deploy.bench.proposers.choice import EVERY, arms_of
from deploy.bench.proposers.goals import goals
from deploy.bench.proposers.plan import Arm, Cell, Place, places, prompts_of
from deploy.bench.proposers.report import tables
from deploy.bench.proposers.run_file import RunFile
from fleet.config import DEFAULT_MODEL, EngineConfig, ModelConfig
from fleet.errors import ConfigError
from fleet.generation import GenerationRequest
from replicas.loading import choose_device

CATEGORIES = ("chat", "code", "summarization")
CONTEXT_TOKENS = 2048
"""Room in the cache for each request under way."""
MARKS = "bench-proposers"


def main() -> None:
    """Speed-up, acceptance and costs of every proposer, in turns with the baseline on the same engine and prompts."""
    arguments = _parser().parse_args()
    present(lambda: _measured(arguments), arguments.into, MARKS)


def _measured(arguments: argparse.Namespace) -> list[str]:
    """Run what the file of results lacks; all of its tables. Ctrl-C ends with what there is."""
    arms = arms_of(arguments.proposers, arguments.models, arguments.draft_tokens, arguments.arm, say)
    cells = [Cell(*cell) for cell in product(arguments.temperatures, arguments.concurrency, arguments.categories)]
    prompts = load_prompts(arguments.prompts_file)
    _check(prompts, arms, cells)
    file = RunFile(arguments.results, _settings(arguments), _arm_settings(arms))
    left = [place for place in places(arms, cells, arguments.rounds) if not file.has(place)]
    if late := {place.arm.name: None for place in left if file.is_closed(place)}:
        raise ConfigError(f"{arguments.results} has whole rounds without {', '.join(late)}: take another --results")
    if left:
        try:
            _run(arguments, prompts, left, file)
        except KeyboardInterrupt:
            say(f"stopped; the same command goes on from {arguments.results}")
    if not file.blocks:
        raise ConfigError("nothing was measured")
    on_cpu = choose_device(arguments.device, "device") == "cpu"
    return [_taken(arguments, file.blocks), "", *tables(file.blocks), *(goals(file.blocks) if on_cpu else ())]


def _taken(arguments: argparse.Namespace, blocks: Sequence[Measured]) -> str:
    minutes = sum(block.seconds for block in blocks) / 60
    return (
        f"Taken with `--tokens {arguments.tokens} --prompts {arguments.prompts:g}`: {len(blocks)} blocks in "
        f"{max(block.round for block in blocks) + 1} rounds, {minutes:.0f} minutes of decoding."
    )


def _check(prompts: Sequence[Prompt], arms: Sequence[Arm], cells: Sequence[Cell]) -> None:
    """A category that is unknown or not asked about is said before anything is loaded. Raises ConfigError."""
    measured = {cell.category for cell in cells}
    for arm in arms:
        if not measured.issuperset(arm.categories):
            raise ConfigError(f"{arm.name} is to be measured on {'+'.join(arm.categories)}: add it to --categories")
    for place in places(arms, cells, 1):
        prompts_of(prompts, place, 1)


def _run(arguments: argparse.Namespace, prompts: Sequence[Prompt], left: Sequence[Place], file: RunFile) -> None:
    most = max(arguments.concurrency)
    engine = EngineConfig(device=arguments.device, max_num_seqs=most, kv_cache_tokens=CONTEXT_TOKENS * most)
    first: dict[tuple[str, int], Place] = {}
    for place in left:
        first.setdefault((place.arm.name, place.cell.concurrency), place)
    with stage(ModelConfig(model=arguments.model, dtype=arguments.dtype), engine, say) as shared:
        arms = {place.arm.name: place.arm for place in left}
        served = {name: shared.serve(arm) for name, arm in arms.items()}
        say("warming up")
        for place in first.values():  # at every concurrency: what a step costs is learned for each
            requests = _requests(arguments, prompts, place, served, arguments.warm_up_tokens)
            run_block(served[place.arm.name], place, requests)
        for number, place in enumerate(left, start=1):
            say(f"{number} of {len(left)}: round {place.round + 1}, {place.cell}, {place.arm.name}")
            requests = _requests(arguments, prompts, place, served, arguments.tokens)
            file.append(run_block(served[place.arm.name], place, requests))


def _requests(
    arguments: argparse.Namespace, prompts: Sequence[Prompt], place: Place, served: Mapping[str, Served], tokens: int
) -> list[GenerationRequest]:
    chosen = prompts_of(prompts, place, int(arguments.prompts * place.cell.concurrency))
    return requests_of(chosen, place, served[place.arm.name].target.tokenizer, tokens)


def _settings(arguments: argparse.Namespace) -> dict[str, object]:
    """What all blocks of one file have in common."""
    kept = ("model", "dtype", "device", "tokens", "prompts", "prompts_file")
    settings: dict[str, object] = {name: getattr(arguments, name) for name in kept}
    settings["prompts_file"] = str(arguments.prompts_file)
    return settings


def _arm_settings(arms: Sequence[Arm]) -> dict[str, object]:
    return {
        arm.name: arm.speculative.model_dump(mode="json", exclude_defaults=True) if arm.speculative else None
        for arm in arms
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.proposers", description=main.__doc__)
    add = parser.add_argument
    add("--model", default=DEFAULT_MODEL, help="the target: hub id, folder or GGUF file")
    add("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--models", type=Path, default=Path("deploy/models"), help="folder of trained proposers")
    add(
        "--proposers",
        nargs="*",
        default=[*EVERY],
        metavar="NAME",
        help="by default all; NAME@chat+code only on these prompts",
    )
    add("--arm", action="append", default=[], help="one more: NAME=JSON with the keys of a path's 'speculative'")
    add("--categories", nargs="+", default=list(CATEGORIES), help="of the prompts")
    add("--temperatures", nargs="+", type=float, default=[0.0, 0.8])
    add("--concurrency", nargs="+", type=count, default=[1, 4, 8])
    add("--draft-tokens", type=count, default=4, help="longest draft of the trained proposers")
    add("--tokens", type=count, default=256, help="most tokens of an answer")
    add("--warm-up-tokens", type=count, default=24, help="of each answer before anything is measured")
    add("--prompts", type=at_least_one, default=2.0, help="requests of a block for each one under way, such as 1.5")
    add("--rounds", type=count, default=6, help="five or more give intervals")
    add("--prompts-file", type=Path, default=SHIPPED_PROMPTS, help="JSON lines; held out of all training")
    add("--results", type=Path, default=Path("build/proposers.jsonl"), help="measured blocks; a run goes on from them")
    add("--into", type=Path, help="a document with the marks, such as docs/benchmarks.md")
    return parser


def say(line: str) -> None:
    """Progress, beside the tables."""
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    main()

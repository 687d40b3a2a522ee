"""Does `fleet plan` know what fits? Weights, cached tokens and sequences with each proposer, predicted and loaded."""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.bench.document import present
from deploy.bench.memory_held import Asked, Held, look_and_weigh, quiet
from deploy.bench.options import count
from deploy.planning.config_file import find_architecture
from deploy.planning.formats import formats_here
from deploy.planning.hardware import parse_size
from deploy.planning.memory import Deployment, MemoryPlan, plan_memory
from deploy.planning.proposers import build_proposer, parse_proposer
from fleet.config import DEFAULT_MODEL, LOOKUP_METHODS, ModelConfig, SpeculativeConfig
from replicas.model_store import SHIPPED_PROPOSERS, resolve_head, resolve_model

MARKS = "bench-memory"
BASELINE = "baseline"
ARMS = (BASELINE, "draft_model", "eagle", "eagle3", "medusa", *LOOKUP_METHODS)
LENGTH = 4
MIB = 2**20
COLUMNS = (
    "weights, MiB",
    "proposer's, MiB",
    "bytes a cached token",
    "proposer's",
    "tokens",
    "sequences",
    "drafted for at once",
    "process, MiB",
)


@dataclass(frozen=True, slots=True)
class Room:
    """What is planned for: all weights, and so much beside them for the caches of target and proposer."""

    cache_bytes: float
    context: int
    dtype: str = "bfloat16"
    model: str = DEFAULT_MODEL


@dataclass(frozen=True, slots=True)
class Row:
    """One arm: what was predicted, what there was, and the resident bytes of the processes that held it."""

    arm: str
    plan: MemoryPlan
    tokens: int
    sequences: int
    held: Held
    resident: tuple[int, ...]


def proposer_of(arm: str) -> SpeculativeConfig | None:
    """The proposer of that kind that comes with this project."""
    if arm == BASELINE:
        return None
    keys: dict[str, object] = {"method": arm, "num_speculative_tokens": LENGTH, "adaptive": False}
    names = [name for name in SHIPPED_PROPOSERS if name.endswith(f"-{arm.removesuffix('_model')}")]
    return SpeculativeConfig.model_validate(keys | ({"model": names[0]} if names else {}))


def planned(arm: str, room: Room) -> MemoryPlan:
    """As `fleet plan --device cpu` reckons, on a machine with memory for all weights and `cache_bytes` of cache."""
    folder = resolve_model(ModelConfig(model=room.model), quiet)
    formats, target = formats_here(room.dtype), find_architecture(str(folder))
    config = proposer_of(arm)
    proposer = None
    if config is not None:
        model = f":{resolve_head(config.model, None, quiet)}" if config.model else ""
        proposer = build_proposer(
            parse_proposer(f"{arm}{model}", draft_length=LENGTH, acceptance=None), target, 1, formats
        )
    weights = formats.target_bytes(target)
    memory = weights + (proposer.weight_bytes if proposer else 0.0) + room.cache_bytes
    return plan_memory(Deployment(memory, 1.0, 0.0, weights, formats.cache(target)), proposer)


def measured(arm: str, room: Room) -> Row:
    """Load what was planned, each process of a path in one of its own."""
    plan, proposer = planned(arm, room), proposer_of(arm)
    tokens = plan.tokens
    asked = Asked(room.model, room.dtype, proposer, tokens, room.context)
    if arm != "draft_model":
        held, resident = _in_its_own_process(asked)
        return Row(arm, plan, tokens, plan.sequences(room.context), held, (resident,))
    target, resident = _in_its_own_process(replace(asked, proposer=None))
    draft, drafts = _in_its_own_process(asked)
    held = replace(draft, weights=target.weights, cache=target.cache, sequences=target.sequences)
    return Row(arm, plan, tokens, plan.sequences(room.context), held, (resident, drafts))


def _in_its_own_process(asked: Asked) -> tuple[Held, int]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([look_and_weigh.__module__])
    with context.Pool(1) as pool:
        return pool.apply(look_and_weigh, (asked,))


def table(rows: list[Row]) -> Iterator[str]:
    """Markdown: for each arm what was predicted, then what there was."""
    yield f"| | | {' | '.join(COLUMNS)} |"
    yield "|---" * (2 + len(COLUMNS)) + "|"
    for row in rows:
        plan, held = row.plan, row.held
        yield _line(row.arm, "predicted", _figures(plan, row.tokens, row.sequences))
        own = held.cache / row.tokens, held.proposer_cache / row.tokens
        there = _numbers((held.weights, held.proposer_weights), own)
        drafting = str(held.drafting) if row.arm != BASELINE else "–"
        resident = " + ".join(f"{size / MIB:,.0f}" for size in row.resident)
        yield _line("", "loaded", [*there, f"{row.tokens:,}", str(held.sequences), drafting, resident])


def _figures(plan: MemoryPlan, tokens: int, sequences: int) -> list[str]:
    weights = (plan.weights, plan.proposer_weights)
    caches = (plan.target_cache.bytes_per_token, plan.proposer_cache.bytes_per_token)
    return [*_numbers(weights, caches), f"{tokens:,}", str(sequences), "–", "–"]


def _numbers(weights: tuple[float, float], caches: tuple[float, float]) -> list[str]:
    return [*(f"{size / MIB:.1f}" for size in weights), *(f"{size:,.0f}" for size in caches)]


def _line(arm: str, what: str, figures: list[str]) -> str:
    return f"| {arm} | {what} | {' | '.join(figures)} |"


def main() -> None:
    """What each shipped proposer takes from the target, as predicted by `fleet plan` and as loaded."""
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.memory", description=main.__doc__)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--cache", default="1GiB", help="for the caches of target and proposer together")
    parser.add_argument("--context", type=count, default=512, help="tokens of each sequence")
    parser.add_argument("--into", type=Path, help="a document with the marks, such as docs/benchmarks.md")
    arguments = parser.parse_args()

    def lines() -> list[str]:
        room = Room(parse_size(arguments.cache, "--cache"), arguments.context, arguments.dtype)
        return [*table([measured(arm, room) for arm in arguments.arms]), ""]

    present(lines, arguments.into, MARKS)


if __name__ == "__main__":
    main()

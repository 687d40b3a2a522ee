"""The command: every proposer in turn, each for its share of the time; exit code 1 where something leaks."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from deploy.bench.document import present
from deploy.bench.options import count
from deploy.bench.soak.alone import soak_alone
from deploy.bench.soak.arms import SoakArm, soak_arms
from deploy.bench.soak.pair import Load
from deploy.bench.soak.report import Row, problems, tables
from fleet.config import DEFAULT_MODEL, EngineConfig, ModelConfig, SpeculativeConfig
from replicas.target_worker import WorkerSettings

MARKS = "bench-soak"
METHODS = get_args(SpeculativeConfig.model_fields["method"].annotation)
KV_TOKENS = 700
"""Too few for the requests of all clients, so that some are preempted."""


def main() -> None:
    """Mixed requests, clients that leave, preemptions and drafts that die, and whether all of it leaves nothing."""
    arguments = _parser().parse_args()
    rows: list[Row] = []
    present(lambda: _lines(arguments, rows), arguments.into, MARKS)
    sys.exit(1 if any(problems(row) for row in rows) else 0)


def _lines(arguments: argparse.Namespace, rows: list[Row]) -> Iterator[str]:
    arms = [arm for arm in soak_arms(arguments.models, _say) if arm.speculative.method in arguments.proposers]
    began = time.monotonic()
    for number, arm in enumerate(arms):
        now = time.monotonic()
        until = now + (began + 60 * arguments.minutes - now) / (len(arms) - number)
        _say(f"{number + 1} of {len(arms)}: {arm.name}, {until - now:.0f} s")
        soaked = soak_alone(_settings(arguments, arm), Load(), until, kills_draft=arm.kills_draft)
        rows.append(Row(arm.name, arm.has_draft, soaked))
    return tables(rows, (time.monotonic() - began) / 60)


def _settings(arguments: argparse.Namespace, arm: SoakArm) -> WorkerSettings:
    return WorkerSettings(
        "soak",
        ModelConfig(model=arguments.model, dtype=arguments.dtype),
        EngineConfig(kv_cache_tokens=KV_TOKENS, max_num_seqs=Load().clients),
        arm.speculative,
    )


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.soak", description=main.__doc__)
    add = parser.add_argument
    add("--minutes", type=count, default=15, help="of the whole run; every proposer gets at least six turns")
    add("--model", default=DEFAULT_MODEL, help="the target: hub id, folder or GGUF file")
    add("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    add("--models", type=Path, default=Path("deploy/models"), help="folder of trained proposers")
    add("--proposers", nargs="+", default=list(METHODS), choices=METHODS, metavar="METHOD", help="by default all")
    add("--into", type=Path, help="a document with the marks, such as docs/benchmarks.md")
    return parser


if __name__ == "__main__":
    main()

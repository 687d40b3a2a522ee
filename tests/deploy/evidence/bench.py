"""A whole matrix against a simulated fleet, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from deploy.evidence.assess import assess
from deploy.evidence.block_driver import BlockDriver
from deploy.evidence.config import MatrixConfig, parse_matrix
from deploy.evidence.matrix import Inputs, arms
from deploy.evidence.measured import ServerFigures
from deploy.evidence.result import CellResult, MatrixResult
from deploy.evidence.run import MatrixRun, Progress, check_paths, clients_of, run_facts
from deploy.evidence.run_file import SCHEMA, Header, RunFile
from deploy.evidence.samples import Sample, Samples
from tests.deploy.evidence.simulated import SimulatedFleet, VirtualClock, run_virtually

PROMPTS = Samples(
    tuple(
        Sample(f"p{number}", ("chat", "code")[number % 2], ({"role": "user", "content": "why " * (3 + number)},))
        for number in range(24)
    )
)


class NoProbe:
    async def watch(self, path: str | None, is_over: asyncio.Event) -> ServerFigures:
        return ServerFigures()


def config_of(**changes: Any) -> MatrixConfig:
    load = changes.pop("load", {"concurrency": [1, 4]})
    workload = changes.pop("workload", {"max_tokens": 12})
    base = {"url": "http://simulated", "rounds": 6, "requests": 4, "load": load, "workload": workload}
    return parse_matrix({**base, **changes}, "test")


def open_file(config: MatrixConfig, path: Path, samples: Samples = PROMPTS) -> RunFile:
    header = Header(SCHEMA, 0.0, config.model_dump(mode="json"), "simulated", str(len(samples.items)))
    return RunFile.open(path, header)


def measure(
    config: MatrixConfig,
    fleet: SimulatedFleet,
    clock: VirtualClock,
    file: RunFile,
    *,
    inputs: Inputs | None = None,
    notes: list[Progress] | None = None,
) -> MatrixResult:
    inputs = inputs or Inputs(PROMPTS)

    async def work() -> None:
        async with httpx.AsyncClient(transport=fleet, base_url=config.url) as http:
            model = await check_paths(config, http, clock, None)
            clients = clients_of(config, http, clock, model=model, key=None)
            note = (lambda progress: None) if notes is None else notes.append
            await MatrixRun(config, inputs, file, BlockDriver(clients, NoProbe(), clock), note).run()

    run_virtually(clock, work())
    blocks = file.whole_rounds([arm.name for arm in arms(config)])
    return assess(config, run_facts(config, inputs, file, file.header.fingerprints), blocks)


def cell_of(result: MatrixResult, condition: str) -> CellResult:
    (cell,) = (cell for cell in result.cells if cell.condition == condition)
    return cell

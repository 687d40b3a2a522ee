"""Runs a matrix from a terminal: files in, progress shown, files out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from deploy.admin_client import AdminClient
from deploy.bench.asking import open_http
from deploy.connection import connect, fingerprints_in, settled_status
from deploy.evidence.assess import assess
from deploy.evidence.block_driver import BlockDriver
from deploy.evidence.bucket_report import render_bucket_csv
from deploy.evidence.config import MatrixConfig
from deploy.evidence.gain_report import render_gain_csv
from deploy.evidence.matrix import Inputs, arms
from deploy.evidence.predicted import Predictor
from deploy.evidence.report import render_csv, render_html
from deploy.evidence.result import CONFIG_FILE, REPORT_FILE, RUN_FILE, MatrixResult, to_json
from deploy.evidence.run import MatrixRun, Progress, check_paths, clients_of, run_facts
from deploy.evidence.run_file import SCHEMA, Header, RunFile
from deploy.evidence.samples import filler_samples, load_samples
from deploy.evidence.server_probe import LocalMemory, MetricsProbe
from deploy.evidence.traces import load_trace
from deploy.fleet_state import read_state
from fleet.clock import SystemClock
from fleet.config import resolve_secret, state_folder
from fleet.errors import FleetError, Unavailable


@dataclass(frozen=True, slots=True)
class Measured:
    """The result, and why the run ended before every block was measured, if it did."""

    result: MatrixResult
    ended_early: str | None


def measure(config: MatrixConfig, folder: Path, key: str | None, token: str | None = None) -> Measured:
    """Run what the folder does not yet hold. Ctrl-C, or a server that goes away, ends it early and keeps what it has.

    `key` is the API's, `token` that of the fleet's admin API, which says what is measured, before and afterwards.
    Raises `ConfigError` where inputs, server or folder do not fit, or where the fleet changed meanwhile.
    """
    inputs, predictor = load_inputs(config), Predictor(config.predict) if config.predict else None
    model = asyncio.run(_check(config, key))
    file = RunFile.open(folder / RUN_FILE, _header(config, inputs, model, _fingerprints(config, token)))
    ended_early = None
    with _ProgressBar() as progress:
        try:
            asyncio.run(_run(config, inputs, file, key, progress.show))
        except KeyboardInterrupt:
            ended_early = "interrupted"
        except Unavailable as error:
            ended_early = str(error)
    known = file.close(_fingerprints(config, token)) if file.header.fingerprints else {}
    blocks = file.whole_rounds([arm.name for arm in arms(config)])
    result = assess(config, run_facts(config, inputs, file, known), blocks)
    if predictor is not None:
        result = replace(result, predictions=(*result.predictions, *predictor.predictions(result.cells)))
    return Measured(result, ended_early)


def write_report(result: MatrixResult, folder: Path) -> None:
    """`report` as JSON, CSV and HTML, `buckets.csv`, `gains.csv`, and `matrix.yaml`, which measures the same again."""
    (folder / CONFIG_FILE).write_text(yaml.safe_dump(result.config, sort_keys=False), encoding="utf-8")
    (folder / REPORT_FILE).write_text(to_json(result), encoding="utf-8")
    (folder / "report.csv").write_text(render_csv(result), encoding="utf-8")
    (folder / "buckets.csv").write_text(render_bucket_csv(result), encoding="utf-8")
    (folder / "gains.csv").write_text(render_gain_csv(result), encoding="utf-8")
    (folder / "report.html").write_text(render_html(result), encoding="utf-8")


def load_inputs(config: MatrixConfig) -> Inputs:
    """Prompts and trace. Raises `ConfigError` naming what is wrong with a file."""
    workload = config.workload
    secret = None if workload.key is None else resolve_secret(workload.key)
    if workload.lengths is not None:
        samples = filler_samples(load_trace(workload.lengths, secret), workload.max_prompt_tokens)
    else:
        samples = load_samples(workload.prompts, secret)
    return Inputs(samples, load_trace(config.load.trace, secret) if config.load.trace is not None else None)


def _header(config: MatrixConfig, inputs: Inputs, model: str, fingerprints: dict[str, dict[str, str]]) -> Header:
    digest = blake2b(repr(inputs).encode(), digest_size=16).hexdigest()
    return Header(SCHEMA, SystemClock().wall(), config.model_dump(mode="json"), model, digest, fingerprints)


def _fingerprints(config: MatrixConfig, token: str | None) -> dict[str, dict[str, str]]:
    """What the fleet says of the paths that are measured; nothing where it is none of ours, or the token is missing."""
    measured = {arm.path for arm in arms(config) if arm.path is not None}
    try:
        with connect(config.url, token) as fleet:
            found = fingerprints_in(settled_status(fleet, measured))
            return {path: parts for path, parts in found.items() if path in measured}
    except FleetError as error:
        Console(stderr=True).print(f"no rollout can rest on this, for the fleet is unknown: {error}", soft_wrap=True)
        return {}


async def _check(config: MatrixConfig, key: str | None) -> str:
    async with open_http(config.url, config.timeout_s) as http:
        return await check_paths(config, http, SystemClock(), key)


async def _run(
    config: MatrixConfig, inputs: Inputs, file: RunFile, key: str | None, notify: Callable[[Progress], None]
) -> None:
    clock = SystemClock()
    async with open_http(config.url, config.timeout_s) as http:
        clients = clients_of(config, http, clock, model=file.header.model, key=key)
        probe = MetricsProbe(http, _memory(config), settle_seconds=config.pause_s, key=key)
        await MatrixRun(config, inputs, file, BlockDriver(clients, probe, clock), notify).run()


def _memory(config: MatrixConfig) -> LocalMemory | None:
    """Of the local fleet, where that is the one that is measured."""
    state = read_state(state_folder())
    if state is None or state.url != config.url.rstrip("/"):
        return None
    return LocalMemory(AdminClient(state.url, resolve_secret(state.admin_token)))


class _ProgressBar:
    """What runs now, how far it is and how long it will take; where there is no terminal, a line per block."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"))
        self._bar = Bar(*columns, console=self._console, transient=True)
        self._task = self._bar.add_task("", total=None, left="")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, progress: Progress) -> None:
        left = "" if progress.seconds_left is None else f"{timedelta(seconds=round(progress.seconds_left))} left"
        if self._console.is_terminal:
            self._bar.update(
                self._task, description=progress.text, completed=progress.done, total=progress.total, left=left
            )
        else:
            self._console.print(f"{progress.text} {left}".strip(), soft_wrap=True)

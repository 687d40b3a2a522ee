"""Carries a matrix out: finds the load levels, runs every block that is not yet measured, and writes each down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import httpx

from deploy.bench.asking import ApiClient, Question, Reply, served_model
from deploy.evidence.assess import RunFacts
from deploy.evidence.block_driver import BlockDriver
from deploy.evidence.config import AUTO, MatrixConfig
from deploy.evidence.levels import Probed, find_levels, medians, next_probe
from deploy.evidence.matrix import Block, Condition, Inputs, LoadLevel, arms, lay_out, levels, schedule
from deploy.evidence.measured import MeasuredBlock, Timing
from deploy.evidence.run_file import RunFile
from fleet.clock import Clock
from fleet.errors import ConfigError
from fleet.traffic import Outcome


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    text: str
    """What runs now."""
    done: int
    total: int | None
    """Blocks; None while the load levels are being looked for."""
    seconds_left: float | None


class MatrixRun:
    """One run of one matrix; what the file already holds is not measured again."""

    def __init__(
        self,
        config: MatrixConfig,
        inputs: Inputs,
        file: RunFile,
        driver: BlockDriver,
        notify: Callable[[Progress], None],
    ) -> None:
        self._config = config
        self._inputs = inputs
        self._file = file
        self._driver = driver
        self._notify = notify

    async def run(self) -> None:
        """Raises `Unavailable` when the server goes away; the file then holds what was measured."""
        found = await self._search()
        names = [arm.name for arm in arms(self._config)]
        self._file.forget_parts(names)
        blocks = list(schedule(self._config, levels(self._config, found)))
        done = {(block.condition, block.round, block.arm) for block in self._file.blocks}
        left = [block for block in blocks if (block.condition.id, block.round, block.arm.name) not in done]
        for number, block in enumerate(left):
            text = f"round {block.round + 1} of {self._config.rounds}: {block.condition.id} on {block.arm.name}"
            remaining = seconds_left([item.condition.id for item in left[number:]], self._file)
            self._notify(Progress(text, len(blocks) - len(left) + number, len(blocks), remaining))
            self._file.add_block(await self._driver.run(lay_out(self._config, self._inputs, block)))
        self._notify(Progress("done", len(blocks), len(blocks), 0.0))

    async def _search(self) -> tuple[LoadLevel, ...]:
        """The closed-loop levels, where they are to be found: the baseline at rising concurrency, up to its peak."""
        if self._config.load.closed != AUTO:
            return ()
        sampling = next(iter(self._config.sampling))
        baseline = arms(self._config)[0]
        limit, max_lag = self._config.load.max_concurrency, self._config.judge.max_client_lag
        while (concurrency := next_probe(medians(self._file.probes), limit, max_lag)) is not None:
            self._notify(Progress(f"looking for the peak: {concurrency} open on {baseline.name}", 0, None, None))
            condition = Condition(LoadLevel(f"c{concurrency}", concurrency=concurrency), sampling)
            number = sum(probe.concurrency == concurrency for probe in self._file.probes)
            measured = await self._driver.run(lay_out(self._config, self._inputs, Block(condition, number, baseline)))
            self._file.add_probe(_probed(concurrency, measured))
        return found_levels(self._config, self._file)


def _probed(concurrency: int, block: MeasuredBlock) -> Probed:
    paces = [pace for request in block.requests if request.is_done and (pace := Timing.of(request).tpot)]
    lag_share = block.client_lag / median(paces) if paces else 0.0
    return Probed(concurrency, block.window_tokens / block.window_seconds, lag_share)


def found_levels(config: MatrixConfig, file: RunFile) -> tuple[LoadLevel, ...]:
    """The levels that the file's search found; none where they were given, or nothing has been searched yet."""
    seen = medians(file.probes)
    if config.load.closed != AUTO or not seen:
        return ()
    found = find_levels(seen, config.judge.max_client_lag)
    return tuple(LoadLevel(name, concurrency=concurrency) for name, concurrency in found.items())


def run_facts(
    config: MatrixConfig, inputs: Inputs, file: RunFile, fingerprints: Mapping[str, Mapping[str, str]]
) -> RunFacts:
    """What the report says of the run besides its blocks. `fingerprints`: of the paths that stayed what they were."""
    return RunFacts(
        created=file.header.created,
        model=file.header.model,
        has_content=inputs.samples.has_content,
        levels=levels(config, found_levels(config, file)),
        throughput_by_concurrency={probe.concurrency: probe.tokens_per_second for probe in medians(file.probes)},
        fingerprints=fingerprints,
    )


def seconds_left(conditions: list[str], file: RunFile) -> float | None:
    """What the blocks that are left will take, if each takes as long as those of its condition did; None at first."""
    took: dict[str, list[float]] = {}
    for block in file.blocks:
        took.setdefault(block.condition, []).append(block.seconds)
    if not took:
        return None
    means = {condition: sum(values) / len(values) for condition, values in took.items()}
    typical = sum(means.values()) / len(means)
    return sum(means.get(condition, typical) for condition in conditions)


def clients_of(
    config: MatrixConfig, http: httpx.AsyncClient, clock: Clock, *, model: str, key: str | None
) -> dict[str | None, ApiClient]:
    """One client per path; None for what the router decides."""
    return {arm.path: ApiClient(http, clock, model=model, path=arm.path, key=key) for arm in arms(config)}


async def check_paths(config: MatrixConfig, http: httpx.AsyncClient, clock: Clock, key: str | None) -> str:
    """The model's name, after one request to every path. Raises `ConfigError` where one does not answer."""
    model = config.model or await served_model(http, key)
    for path, client in clients_of(config, http, clock, model=model, key=key).items():
        await _check(path, client, clock)
    return model


async def _check(path: str | None, client: ApiClient, clock: Clock) -> None:
    """Raises `ConfigError` where a path does not answer, or where another answers for it."""
    reply = Reply(clock.monotonic())
    messages = ({"role": "user", "content": "Say yes."},)
    await client.ask(Question(messages, max_tokens=4, sampling={"temperature": 0}, seed=0, user="bench-check"), reply)
    who = "the router" if path is None else f"path '{path}'"
    if reply.outcome is not Outcome.DONE:
        raise ConfigError(f"{who} does not answer ({reply.outcome}): {reply.answer.error or 'no text'}")
    if reply.answer.fallbacks:
        raise ConfigError(f"{who} lost a request that another replica finished; see `fleet status` before you measure")
    if path is not None and reply.answer.path not in (None, path):
        raise ConfigError(
            f"path '{path}' was asked for, but '{reply.answer.path}' answered: is it in the fleet's config?"
        )

"""Which blocks does a matrix run, in which order, and what does each ask when?"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import islice

from deploy.bench.asking import Question
from deploy.evidence.arrivals import gamma_arrivals, replayed_arrivals
from deploy.evidence.config import ROUTED, MatrixConfig, SamplingConfig
from deploy.evidence.samples import Sample, Samples
from deploy.evidence.traces import Trace
from fleet.errors import ConfigError

_SEEDS_PER_ROUND = 100_003


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """One load: closed loop where `concurrency` is set, else open loop by `rate_per_second`, else by a trace."""

    name: str
    concurrency: int | None = None
    rate_per_second: float | None = None

    @property
    def text(self) -> str:
        """For people."""
        if self.concurrency is not None:
            return f"{self.concurrency} open" + ("" if self.name == f"c{self.concurrency}" else f" ({self.name})")
        return "as in the trace" if self.rate_per_second is None else f"{self.rate_per_second:g} per second"


@dataclass(frozen=True, slots=True)
class Condition:
    """A load level and a sampling mode: what all arms are compared under."""

    level: LoadLevel
    sampling: str

    @property
    def id(self) -> str:
        return f"{self.level.name}/{self.sampling}"


@dataclass(frozen=True, slots=True)
class Arm:
    """A path under the name it has in the report; in an A/A matrix two arms share a path."""

    name: str
    path: str | None
    """None leaves each request to the router."""


@dataclass(frozen=True, slots=True)
class Block:
    """One arm for one round of one condition."""

    condition: Condition
    round: int
    arm: Arm


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the requests of a matrix are made of."""

    samples: Samples
    trace: Trace | None = None
    """Needed where the load follows a trace."""


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """All that one block asks: the same for every arm of a round, so that requests are compared one by one."""

    block: Block
    questions: tuple[Question, ...]
    """Warm-up, then `measured` requests, then those that keep up the load while the measured ones finish."""
    categories: tuple[str, ...]
    warm_up: int
    measured: int
    due: tuple[float, ...] | None
    """Open loop: when each question is due, in seconds from the start of the block; None in a closed loop."""
    most_open: int | None
    """Requests open at once: the closed loop's concurrency, or the open loop's limit, if it has one."""


def arms(config: MatrixConfig) -> tuple[Arm, ...]:
    """The baseline first. A candidate that is the baseline's own path makes an A/A matrix."""
    again = {config.baseline: f"{config.baseline}-again"}
    candidates = (Arm(again.get(name, name), None if name == ROUTED else name) for name in config.candidates)
    return (Arm(config.baseline, config.baseline), *candidates)


def levels(config: MatrixConfig, found: Sequence[LoadLevel] = ()) -> tuple[LoadLevel, ...]:
    """Every load level; `found` stands for the closed-loop ones where the config leaves them to be found."""
    given = config.load.closed
    closed = list(found) if isinstance(given, str) else [LoadLevel(f"c{n}", concurrency=n) for n in given]
    opened = [LoadLevel(f"r{rate:g}", rate_per_second=rate) for rate in config.load.rate]
    replayed = [] if config.load.trace is None else [LoadLevel("trace")]
    return (*closed, *opened, *replayed)


def schedule(config: MatrixConfig, levels: Sequence[LoadLevel]) -> Iterator[Block]:
    """Round after round through all conditions, so that an early end leaves every cell some evidence.

    Even rounds run the arms forwards, odd ones backwards (A B B A …): a steady drift of the machine cancels.
    """
    forwards = arms(config)
    for number in range(config.rounds):
        for level in levels:
            for sampling in config.sampling:
                for arm in forwards if number % 2 == 0 else reversed(forwards):
                    yield Block(Condition(level, sampling), number, arm)


def lay_out(config: MatrixConfig, inputs: Inputs, block: Block) -> BlockPlan:
    """The block's requests: what is measured depends on the seed and the round, arrivals also on the level."""
    level = block.condition.level
    measured = max(config.requests, level.concurrency or 1)
    warm_up = level.concurrency or max(2, measured // 4)
    after = level.concurrency or measured
    items = _pick(config, inputs.samples, block, measured, warm_up + after)
    ordered = (*items[measured : measured + warm_up], *items[:measured], *items[measured + warm_up :])
    sampling = config.sampling[block.condition.sampling]
    first_seed = config.seed * 1_000_003 + block.round * _SEEDS_PER_ROUND
    seeds = (*range(measured, measured + warm_up), *range(measured), *range(measured + warm_up, len(items)))
    return BlockPlan(
        block=block,
        questions=tuple(
            _question(config, item, sampling, first_seed + seed) for item, seed in zip(ordered, seeds, strict=True)
        ),
        categories=tuple(item.category for item in ordered),
        warm_up=warm_up,
        measured=measured,
        due=None if level.concurrency is not None else _due(config, inputs.trace, level, len(items), block.round),
        most_open=level.concurrency or config.load.max_open,
    )


def _pick(config: MatrixConfig, samples: Samples, block: Block, measured: int, fillers: int) -> list[Sample]:
    """The measured samples of a round, each as often as its weight says; then fillers."""
    wanted = config.workload.categories
    known = [item for item in samples.items if not wanted or item.category in wanted]
    if not known:
        raise ConfigError(f"no prompt is of the categories {', '.join(wanted)}")
    is_greedy = config.sampling[block.condition.sampling].is_greedy
    items = [item for item in known if item.is_greedy in (None, is_greedy)] or known
    first = block.round * measured
    chosen = list(islice(_by_weight(items, config.seed), first, first + measured))
    weights = [item.weight for item in items]
    return chosen + random.Random(f"{config.seed}/{block.round}").choices(items, weights, k=fillers)


def _by_weight(items: Sequence[Sample], seed: int) -> Iterator[Sample]:
    """Without an end: each sample at equal distances from a random start, so that every stretch has the mix of all.

    Of equal weights every one comes once before any comes again. It is systematic sampling (Madow & Madow, Ann. Math.
    Stat. 15(1), 1944) of each sample by itself: on the line on which they are due, any stretch holds each within one
    of its share.
    """
    draw = random.Random(seed)
    turns = [(draw.random() / item.weight, place) for place, item in enumerate(items)]
    heapify(turns)
    while True:
        due, place = turns[0]
        yield items[place]
        heapreplace(turns, (due + 1 / items[place].weight, place))


def _question(config: MatrixConfig, item: Sample, sampling: SamplingConfig, seed: int) -> Question:
    return Question(
        messages=item.messages,
        max_tokens=min(config.workload.max_tokens, item.max_tokens or config.workload.max_tokens),
        sampling=sampling.fields(),
        seed=seed,
        user=f"bench-{seed}",
    )


def _due(config: MatrixConfig, trace: Trace | None, level: LoadLevel, count: int, number: int) -> tuple[float, ...]:
    seed = config.seed * 1_000_003 + number
    if level.rate_per_second is not None:
        return tuple(gamma_arrivals(count, level.rate_per_second, config.load.burstiness, seed).tolist())
    if trace is None:
        raise ConfigError("this load follows a trace, but none was given")
    return tuple(replayed_arrivals(trace.arrivals, count, config.load.time_scale, seed).tolist())

"""Does one controller keep up with a large fleet? Reports of many routers through its real interface.

Time is simulated, so that the figures are the controller's own work: how much of each second it is busy, how long a
tick holds everything up, and how a decision reaches every router.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.table import Table

from canary.controller import Controller
from canary.plan import PathFacts
from fleet.config import ControllerConfig
from fleet.traffic import HardTrip, HardTripKind, Outcome, PathTally, ReplicaReport, RouterReport

REPORT_SECONDS = 0.25
TOKENS_PER_REQUEST = 20
PATHS = {"baseline": PathFacts(8, False), "speculative": PathFacts(8, True)}
PLAN = {
    "stable": "baseline",
    "canary": "speculative",
    "steps": [{"weight": 25, "bake": "1h"}, {"weight": 100}],
    "window": "10s",
    "guardrails": {
        "itl_p95": {"max_increase": "10%"},
        "error_rate": {"max_increase": "0.5pp"},
        "acceptance": {"max_decrease": "10%", "reference": 0.7},
    },
}
_MIB = 2**20


@dataclass
class SimulatedClock:
    """Time that passes as the fleet's own."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now


class TimedController(Controller):
    """Notes how long every tick takes, in seconds of this machine."""

    ticks: list[float]

    def tick(self) -> None:
        began = time.perf_counter()
        super().tick()
        self.ticks.append(time.perf_counter() - began)


@dataclass
class Fleet:
    """Routers that report in turn, evenly over each interval, and adopt the split of every reply."""

    controller: TimedController
    clock: SimulatedClock
    routers: int
    samples: list[dict[str, PathTally]]
    sequences: dict[int, int] = field(default_factory=dict)
    splits: dict[int, int] = field(default_factory=dict)
    busy_seconds: float = 0.0

    def run(self, seconds: float) -> None:
        for moment in range(round(seconds / REPORT_SECONDS)):
            for router in range(self.routers):
                self.clock.now += REPORT_SECONDS / self.routers
                self.report(router, self.samples[(moment + router) % len(self.samples)])
            for path, facts in PATHS.items():
                for number in range(facts.replicas):
                    self.controller.replica_report(ReplicaReport(path, f"{path}-{number}", 1, 8, 0, 100, 1000, 0, 0))

    def report(self, router: int, tallies: dict[str, PathTally], trips: tuple[HardTrip, ...] = ()) -> None:
        self.sequences[router] = number = self.sequences.get(router, 0) + 1
        report = RouterReport(f"router-{router}", number, self.splits.get(router, 0), tallies, tallies, trips)
        began = time.perf_counter()
        reply = self.controller.report(report)
        self.busy_seconds += time.perf_counter() - began
        self.splits[router] = reply.split.version

    def trip(self) -> float:
        """One router sees an allocation failure; simulated seconds until the last one has left the canary."""
        before, began = max(self.splits.values()), self.clock.now
        self.report(0, {}, (HardTrip("speculative", HardTripKind.OOM, "drill"),))
        while min(self.splits.values()) <= before:
            for router in range(self.routers):
                self.clock.now += REPORT_SECONDS / self.routers
                self.report(router, {})
                if min(self.splits.values()) > before:
                    break
        return self.clock.now - began


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run showed."""

    tick_p50: float
    tick_p99: float
    tick_max: float
    busy_share: float
    """Seconds of work per second of the fleet's time."""
    rollback_seconds: float
    memory_mib: tuple[float, float]
    """Resident, after a third of the run and at its end."""


def tally(requests: int, share: float, itl_seconds: float, source: random.Random) -> PathTally:
    """What one router saw of one path: so many requests, one value of `itl` per token."""
    count = max(1, round(requests * share))
    found = PathTally(assigned=count, outcomes={Outcome.DONE: count}, output_tokens=count * TOKENS_PER_REQUEST)
    for _ in range(count):
        level = source.gauss(0.0, 0.15)
        found.ttft.add(0.2 * math.exp(source.gauss(0.0, 0.3)))
        found.request_acceptance.add(1.0 + min(max(source.gauss(0.7, 0.12), 0.0), 1.0))
        for _ in range(TOKENS_PER_REQUEST):
            found.itl.add(itl_seconds * math.exp(level + source.gauss(0.0, 0.25)))
    return found


def samples(requests: int, seed: int, count: int = 60) -> list[dict[str, PathTally]]:
    source = random.Random(seed)
    return [
        {"baseline": tally(requests, 0.75, 0.030, source), "speculative": tally(requests, 0.25, 0.022, source)}
        for _ in range(count)
    ]


def measure(folder: Path, *, routers: int, requests_per_second: float, seconds: float) -> Measured:
    """Run a rollout under load, then trip it."""
    clock = SimulatedClock()
    config = ControllerConfig(journal=str(folder / "journal.sqlite3"))
    TimedController.ticks = []
    controller = TimedController.open(config, paths=PATHS, stable="baseline", model_name="none", clock=clock)
    assert isinstance(controller, TimedController)
    per_report = round(requests_per_second * REPORT_SECONDS / routers)
    fleet = Fleet(controller, clock, routers, samples(per_report, seed=1))
    fleet.run(2)
    controller.command("start", {"plan": PLAN})
    fleet.run(seconds / 3)
    early = _resident_mib()
    controller.ticks.clear()
    fleet.busy_seconds, began = 0.0, clock.now
    fleet.run(seconds * 2 / 3)
    busy, late = fleet.busy_seconds / (clock.now - began), _resident_mib()
    ticks = sorted(controller.ticks)
    rollback = fleet.trip()
    controller.close()
    return Measured(ticks[len(ticks) // 2], ticks[int(len(ticks) * 0.99)], ticks[-1], busy, rollback, (early, late))


def _resident_mib() -> float:
    return float(psutil.Process().memory_info().rss) / _MIB


def rows(found: Measured) -> Iterator[tuple[str, str]]:
    yield (
        "tick p50 / p99 / max",
        " / ".join(f"{1000 * value:.1f}" for value in (found.tick_p50, found.tick_p99, found.tick_max)) + " ms",
    )
    yield "busy", f"{found.busy_share:.0%} of one core"
    yield "hard trip → last router off the canary", f"{found.rollback_seconds:.2f} s"
    yield (
        "resident memory, after a third of the run and at its end",
        " / ".join(f"{value:.0f}" for value in found.memory_mib) + " MiB",
    )


def main(
    routers: Annotated[int, typer.Option(min=1)] = 200,
    rate: Annotated[float, typer.Option(help="Requests a second, of the whole fleet.")] = 50_000,
    seconds: Annotated[float, typer.Option(min=3, help="Of the fleet's time.")] = 120,
) -> None:
    """Measure one controller on this machine's disk."""
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder:
        found = measure(Path(folder), routers=routers, requests_per_second=rate, seconds=seconds)
    table = Table(f"{routers} routers, {rate:g} requests/s, {seconds:g} s", "")
    for row in rows(found):
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)

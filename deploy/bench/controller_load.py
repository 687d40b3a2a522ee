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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.table import Table

from canary.controller import Controller
from canary.plan import PathFacts
from fleet.config import ControllerConfig
from fleet.generation import FinishReason, Round, TokenChunk
from fleet.traffic import HardTrip, HardTripKind, Outcome, ReplicaReport, RouterReport, SamplingMode
from router.ledger import Account, Ledger
from router.split import Assignment

REPORT_SECONDS = 0.25
TOKENS_PER_REQUEST = 20
CANARY_SHARE = 0.25
ACCEPTANCE = 0.7
PROMPT_TOKENS = (60, 700, 5000)
PATHS = {"baseline": PathFacts(12, False), "speculative": PathFacts(4, True)}
PLAN = {
    "stable": "baseline",
    "canary": "speculative",
    "steps": [{"weight": 25, "bake": "1h"}, {"weight": 100}],
    "window": "10s",
    "guardrails": {
        "itl_p95": {"max_increase": "10%"},
        "ttft_p95": {"max_increase": "10%"},
        "tpot_p95": {"max_increase": "10%"},
        "queue_delay": {"max_increase": "50ms"},
        "gap_p99": {"max": "1s"},
        "stall": {"max_increase": "5pp"},
        "error_rate": {"max_increase": "0.5pp"},
        "cancel_rate": {"max_increase": "2pp"},
        "completion_lag": {"max_increase": "5pp"},
        "kv_pressure": {"max_increase": "10pp"},
        "peak_throughput": {"max_decrease": "10%"},
        "acceptance": {"max_decrease": "10%", "reference": "calibrate"},
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
    samples: list[RouterReport]
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
                    self.controller.replica_report(ReplicaReport(path, f"{path}-{number}", 1, 8, 1, 100, 1000, 0, 0))

    def report(self, router: int, sample: RouterReport) -> None:
        """Send a sample in this router's name."""
        self.sequences[router] = number = self.sequences.get(router, 0) + 1
        split = self.splits.get(router, 0)
        report = replace(sample, router_id=f"router-{router}", sequence=number, applied_split=split)
        began = time.perf_counter()
        reply = self.controller.report(report)
        self.busy_seconds += time.perf_counter() - began
        self.splits[router] = reply.split.version

    def trip(self) -> float:
        """One router sees an allocation failure; simulated seconds until the last one has left the canary."""
        before, began = max(self.splits.values()), self.clock.now
        idle = RouterReport("", 0, 0, {}, {})
        self.report(0, replace(idle, hard_trips=(HardTrip("speculative", HardTripKind.OOM, "drill"),)))
        while min(self.splits.values()) <= before:
            for router in range(self.routers):
                self.clock.now += REPORT_SECONDS / self.routers
                self.report(router, idle)
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


def sampled_report(requests: int, source: random.Random) -> RouterReport:
    """What a router says of so many whole requests, counted by its own ledger: a chunk for each step."""
    ledger = Ledger("sampled")
    for number in range(requests):
        path = _drawn_path(source)
        assigned = Assignment(path, is_compared=True, is_control=_is_control(path, source), is_typical=True)
        account = ledger.open(str(number), assigned, 0.0, 1)
        _serve(account, path, source)
    return ledger.next_report(60.0, applied_split=0, queued=0)


def _drawn_path(source: random.Random) -> str:
    return "speculative" if source.random() < CANARY_SHARE else "baseline"


def _is_control(path: str, source: random.Random) -> bool:
    """As many of stable's users as the canary has."""
    return path == "baseline" and source.random() < CANARY_SHARE / (1 - CANARY_SHARE)


def _serve(account: Account, path: str, source: random.Random) -> None:
    """One answer of `TOKENS_PER_REQUEST` tokens, on the canary a round of four drafts for every step."""
    sampling = source.choice(list(SamplingMode))
    account.admitted(0.0, source.choice(PROMPT_TOKENS), sampling)
    at, left = 0.2 * math.exp(source.gauss(0.0, 0.3)), TOKENS_PER_REQUEST
    pace, queued = 0.030 * math.exp(source.gauss(0.0, 0.15)), 0.001
    while left:
        accepted = sum(source.random() < ACCEPTANCE for _ in range(4)) if path == "speculative" else 0
        count = min(left, 1 + accepted)
        left -= count
        round_ = Round(4, accepted) if path == "speculative" else None
        finish = None if left else FinishReason.LENGTH
        account.note(0, at, TokenChunk("", (0,) * count, "", round=round_, finish=finish, queue_seconds=queued))
        at += pace * math.exp(source.gauss(0.0, 0.25))
    account.close(Outcome.DONE)


def samples(requests: int, seed: int, count: int = 60) -> list[RouterReport]:
    source = random.Random(seed)
    return [sampled_report(requests, source) for _ in range(count)]


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

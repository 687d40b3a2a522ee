"""A fleet without machines: seeded traffic and replica reports, driven through a real controller tick by tick."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from canary.controller import Controller
from canary.plan import PathFacts
from fleet.config import ControllerConfig, WebhookConfig
from fleet.histogram import LogHistogram
from fleet.traffic import HardTrip, Outcome, PathTally, ReplicaReport, ReportReply, RouterReport, Split
from tests.fakes import ManualClock

PATHS = {"baseline": PathFacts(1, False), "speculative": PathFacts(1, True)}


@dataclass(slots=True)
class Behaviour:
    """How a path serves."""

    itl_seconds: float = 0.030
    spread: float = 0.25
    acceptance: float | None = None
    error_rate: float = 0.0
    fallback_rate: float = 0.0
    """Of its requests, those that fail here and end well on stable."""
    tokens: int = 20
    is_silent: bool = False
    """Takes requests and is never heard of again."""


@dataclass(slots=True)
class Router:
    """What a router does with the split, in one object."""

    router_id: str
    split: Split
    sequence: int = 0
    outstanding: RouterReport | None = None
    trips: list[HardTrip] = field(default_factory=list)
    compared: dict[str, PathTally] = field(default_factory=dict)
    open: dict[str, int] = field(default_factory=dict)

    def exchange(self, controller: Controller) -> ReportReply:
        if self.outstanding is None:
            self.sequence += 1
            tallies, self.compared = self.compared, {}
            trips, self.trips = tuple(self.trips), []
            waiting = dict(self.open)
            self.outstanding = RouterReport(
                self.router_id, self.sequence, self.split.version, tallies, tallies, trips, waiting, waiting
            )
        reply = controller.report(self.outstanding)
        if reply.acknowledged >= self.outstanding.sequence:
            self.outstanding = None
        self.split = reply.split
        return reply


@dataclass
class World:
    """Everything around one controller."""

    folder: Path
    seed: int = 0
    requests_per_second: float = 8.0
    step_seconds: float = 1.0
    """Between two reports of a router. The controller ticks at the first report of a step and at its end."""
    routers: int = 2
    behaviours: dict[str, Behaviour] = field(
        default_factory=lambda: {"baseline": Behaviour(), "speculative": Behaviour(itl_seconds=0.02, acceptance=0.7)}
    )
    replicas: dict[str, int] = field(default_factory=lambda: {"baseline": 1, "speculative": 1})
    paths: Mapping[str, PathFacts] = field(default_factory=lambda: PATHS)
    journal: str = ""
    """Where the controller writes; empty means a file in the folder."""
    webhooks: dict[str, WebhookConfig] = field(default_factory=dict)
    misrouted_percent: float | None = None
    """What broken routers give the canary, whatever they are told."""
    waiting: int = 0
    """Sequences that wait in every replica."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clock = ManualClock()
        self.controller = self.open()
        self.fleet = [Router(f"router-{n}", Split(0, "baseline")) for n in range(self.routers)]
        self.generation = 0
        self.assigned = dict.fromkeys(self.paths, 0)

    def open(self) -> Controller:
        journal = self.journal or str(self.folder / "journal.sqlite3")
        config = ControllerConfig(journal=journal, webhooks=self.webhooks)
        return Controller.open(config, paths=self.paths, stable="baseline", model_name="tiny", clock=self.clock)

    def restart(self) -> None:
        """The controller dies and its successor takes over."""
        self.controller.close()
        self.controller = self.open()

    def command(self, name: str, **arguments: Any) -> Mapping[str, Any]:
        return self.controller.command(name, arguments)

    @property
    def rollout(self) -> Mapping[str, Any]:
        found = self.controller.status()["rollout"]
        assert found is not None
        return found

    def run(self, seconds: float) -> None:
        """Serve traffic, report and tick."""
        for _ in range(round(seconds / self.step_seconds)):
            self.clock.advance(self.step_seconds)
            self.report_replicas()
            for router in self.fleet:
                self.serve(router)
                router.exchange(self.controller)
            self.controller.tick()

    def run_until(self, *states: str, limit: float = 600.0) -> float:
        """Run until the rollout is in one of the states; seconds it took, to within two."""
        seconds = 0.0
        while self.rollout["state"] not in states:
            assert seconds < limit, f"still {self.rollout['state']} after {limit} s: {self.rollout['reason']}"
            self.run(2)
            seconds += 2
        return seconds

    def report_replicas(self) -> None:
        for path, count in self.replicas.items():
            for number in range(count):
                self.controller.replica_report(
                    replica(path, f"{path}-{self.generation}-{number}", waiting=self.waiting)
                )

    def serve(self, router: Router) -> None:
        mean = self.requests_per_second * self.step_seconds / len(self.fleet)
        for _ in range(int(mean) + (self.random.random() < mean % 1)):
            percent = router.split.canary_percent if self.misrouted_percent is None else self.misrouted_percent
            is_canary = router.split.canary is not None and self.random.random() * 100 < percent
            path = router.split.canary if is_canary and router.split.canary else router.split.stable
            self.assigned[path] += 1
            tally = router.compared.setdefault(path, PathTally())
            tally.assigned += 1
            tally.newcomers += 1
            if self.behaviours[path].is_silent:
                router.open[path] = router.open.get(path, 0) + 1
            else:
                finish(tally, self.behaviours[path], self.random)


def finish(tally: PathTally, how: Behaviour, source: random.Random) -> None:
    """One request runs to its end."""
    failed = source.random() < how.error_rate
    outcome = Outcome.FAILED if failed else Outcome.DONE
    tally.outcomes[outcome] = tally.outcomes.get(outcome, 0) + 1
    tally.fallbacks += not failed and source.random() < how.fallback_rate
    level = source.gauss(0.0, 0.15)
    for _ in range(how.tokens):
        tally.itl.add(how.itl_seconds * math.exp(level + source.gauss(0.0, how.spread)))
    tally.output_tokens += how.tokens
    if how.acceptance is not None:
        ratio = min(max(source.gauss(how.acceptance, 0.12), 0.0), 1.0)
        tally.request_acceptance.add(1.0 + ratio)
        tally.acceptance_by.setdefault("greedy/short", LogHistogram()).add(1.0 + ratio)
        tally.rounds += 10
        tally.drafted += 40
        tally.accepted += round(40 * ratio)


def replica(path: str, replica_id: str, **changes: Any) -> ReplicaReport:
    report = ReplicaReport(path, replica_id, 4242, 1, 0, 100, 1000, 0, 0)
    return replace(report, **changes)


def plan(**changes: Any) -> dict[str, Any]:
    """A plan with short windows, to be changed by the test."""
    return {
        "stable": "baseline",
        "canary": "speculative",
        "steps": [{"weight": 5, "bake": "40s"}, {"weight": 50, "bake": "40s"}, {"weight": 100}],
        "window": "2s",
        "min_requests": 10,
        "on_no_data": {"hold": "20s", "then": "rollback"},
        "guardrails": {
            "itl_p95": {"max_increase": "10%"},
            "error_rate": {"max_increase": "0.5pp"},
            "acceptance": {"max_decrease": "10%", "reference": 0.7},
        },
    } | changes

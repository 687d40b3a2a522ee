"""Whole rollouts told as text: `$ command` lines and, below each, what must be said. `*` stands for anything."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from canary.plan import PathFacts
from fleet.errors import FleetError
from fleet.traffic import HardTrip, HardTripKind
from tests.canary.world import Behaviour, World, plan

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


class Teller:
    """Carries out the commands of a scenario; every method answers with the lines it has to say."""

    def __init__(self, world: World) -> None:
        self.world = world

    def carry_out(self, line: str) -> list[str]:
        name, *words = shlex.split(line)
        method = getattr(self, name.replace("-", "_"))
        try:
            return [*method(*words)]
        except FleetError as error:
            return [f"{type(error).__name__}: {error}"]

    def start(self, *overrides: str) -> list[str]:
        changes = yaml.safe_load(" ".join(overrides) or "{}")
        return [self.world.command("start", plan=plan(**changes))["message"]]

    def pause(self) -> list[str]:
        return [self.world.command("pause")["message"]]

    def resume(self) -> list[str]:
        return [self.world.command("resume")["message"]]

    def retry(self) -> list[str]:
        return [self.world.command("retry")["message"]]

    def promote(self, full: str = "") -> list[str]:
        return [self.world.command("promote", full=full == "--full")["message"]]

    def abort(self, reason: str = "") -> list[str]:
        return [self.world.command("abort", reason=reason)["message"]]

    def set_weight(self, weight: str) -> list[str]:
        return [self.world.command("set-weight", weight=float(weight))["message"]]

    def run(self, seconds: str) -> list[str]:
        self.world.run(float(seconds.removesuffix("s")))
        return []

    def until(self, state: str) -> list[str]:
        self.world.run_until(state)
        return self.status()

    def set(self, path: str, field: str, value: str) -> list[str]:
        setattr(self.world.behaviours[path], field, yaml.safe_load(value))
        return []

    def traffic(self, requests_per_second: str) -> list[str]:
        self.world.requests_per_second = float(requests_per_second)
        return []

    def replicas(self, path: str, count: str) -> list[str]:
        self.world.replicas[path] = int(count)
        return []

    def crash(self, path: str) -> list[str]:
        """All its replicas die; new ones come up ten seconds later."""
        count, self.world.replicas[path] = self.world.replicas[path], 0
        self.world.run(10)
        self.world.generation += 1
        self.world.replicas[path] = count
        self.world.run(1)
        return []

    def trip(self, path: str, kind: str, detail: str) -> list[str]:
        router = self.world.fleet[0]
        router.trips.append(HardTrip(path, HardTripKind(kind), detail))
        router.exchange(self.world.controller)
        router.exchange(self.world.controller)
        return [f"router-0 routes {router.split.canary_percent:g} % to {router.split.canary}"]

    def misroute(self, percent: str) -> list[str]:
        """From now on routers give the canary so much, whatever they are told; 0 ends that."""
        self.world.misrouted_percent = float(percent) or None
        return []

    def busy(self, waiting: str) -> list[str]:
        """So many sequences wait in every replica."""
        self.world.waiting = int(waiting)
        return []

    def explain(self, guardrail: str) -> list[str]:
        verdict = self.world.command("explain", guardrail=guardrail)["explanation"]["verdict"]
        return [f"{verdict['level']}: {verdict['reason']}"]

    def restart(self) -> list[str]:
        self.world.restart()
        return []

    def add_path(self, path: str, replicas: str, acceptance: str) -> list[str]:
        """The config gets another path that speculates, which restarts the controller."""
        self.world.paths = {**self.world.paths, path: PathFacts(int(replicas), True)}
        self.world.behaviours[path] = Behaviour(itl_seconds=0.02, acceptance=float(acceptance))
        self.world.replicas[path] = int(replicas)
        self.world.assigned[path] = 0
        self.world.restart()
        return []

    def clock(self, seconds: str) -> list[str]:
        """Somebody sets the machine's wall clock."""
        self.world.clock.wall_offset += float(seconds)
        return []

    def tick_late(self, seconds: str) -> list[str]:
        """The controller's machine is so busy that nothing happens for a while."""
        self.world.clock.advance(float(seconds.removesuffix("s")))
        self.world.run(1)
        return []

    def realised(self) -> list[str]:
        return [f"{self.world.rollout['weight_set']:g} % set, {self.world.rollout['weight_realised']:.0f} % realised"]

    def routers(self) -> list[str]:
        return [
            f"{router.router_id} routes {router.split.canary_percent:g} % to {router.split.canary}, "
            f"the rest to {router.split.stable}"
            for router in self.world.fleet
        ]

    def lint(self, *overrides: str) -> list[str]:
        errors: list[str] = self.world.command("lint", plan=plan(**yaml.safe_load(" ".join(overrides))))["errors"]
        return errors

    def rollouts(self) -> list[str]:
        return [
            f"{item['id']}, attempt {item['attempt']}: {item['state']}: {item['reason']}"
            for item in self.world.command("list")["rollouts"]
        ]

    def status(self) -> list[str]:
        rollout, status = self.world.rollout, self.world.controller.status()
        attempt = f", attempt {rollout['attempt']}" if rollout["attempt"] > 1 else ""
        step = f"step {rollout['step']}/{len(rollout['steps'])}"
        told = [f"{rollout['state']}{attempt}, {step}, {rollout['weight_set']:g} %: {rollout['reason']}"]
        if rollout["waiting_for"] not in (None, rollout["reason"]):
            told.append(f"waiting for {rollout['waiting_for']}")
        if rollout["state"] == "promoted":
            told.append(f"stable path: {status['stable']}")
        return told

    def baked(self) -> list[str]:
        rollout = self.world.rollout
        return [f"{rollout['bake_elapsed_seconds']:.1f} s baked, {rollout['bake_left_seconds']:.1f} s left"]

    def history(self, event: str) -> list[str]:
        return [e["summary"] for e in self.world.command("history")["events"] if e["event"] == event]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_the_rollout_goes_as_told(scenario, tmp_path):
    teller = Teller(World(tmp_path))
    said: list[str] = []
    for number, line in enumerate(scenario.read_text().splitlines(), start=1):
        where = f"{scenario.name}:{number}"
        if line.startswith("$ "):
            assert not said, f"{where}: unexpected {said}"
            said = teller.carry_out(line.removeprefix("$ "))
        elif line.strip() and not line.startswith("#"):
            assert said, f"{where}: nothing was said, expected {line!r}"
            told = said.pop(0)
            pattern = ".*".join(re.escape(part) for part in line.split("*"))
            assert re.fullmatch(pattern, told), f"{where}: {told!r} is not {line!r}"
    assert not said, f"{scenario.name}: unexpected {said}"
    teller.world.controller.close()

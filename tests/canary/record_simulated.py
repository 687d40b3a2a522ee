"""Records the simulated fleet's journals in `fixtures`: `python -m tests.canary.record_simulated`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from canary.record import open_text
from tests.canary.world import World, plan

FIXTURES = Path(__file__).parent / "fixtures"
STEPS = [{"weight": 20, "bake": "40s"}, {"weight": 50, "bake": "120s"}, {"weight": 100}]


def export(world: World, out: Path) -> None:
    """All of the latest rollout, as `fleet canary export` writes it."""
    with open_text(out, "wt") as file:
        after = 0
        while page := world.command("export", after=after, limit=200)["record"]:
            file.writelines(json.dumps(event, separators=(",", ":")) + "\n" for event in page)
            after = page[-1]["id"]


def slow_after_a_retry(folder: Path) -> World:
    """A rollout with a pause, a restart, an abort and a retry, whose canary then becomes 30 % slower."""
    world = World(folder, seed=4, requests_per_second=20, step_seconds=0.5)
    world.run(2)
    world.command("start", plan=plan(steps=STEPS, last_step="no_harm"))
    world.run(12)
    world.command("pause")
    world.restart()
    world.run(4)
    world.command("resume")
    world.command("abort", reason="to see it come back")
    world.command("retry")
    world.run(20)
    world.behaviours["speculative"].itl_seconds = 1.3 * world.behaviours["baseline"].itl_seconds
    world.run_until("rolled_back")
    return world


def main() -> None:
    FIXTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        world = slow_after_a_retry(Path(folder))
        export(world, FIXTURES / "simulated-slow.jsonl.gz")
        world.controller.close()


if __name__ == "__main__":
    main()

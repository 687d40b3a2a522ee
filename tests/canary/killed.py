"""Runs the same world again and again, each time dying without warning at one write to the journal.

`python -m tests.canary.killed FOLDER POINT…`: for every POINT, such as `12-before`, a forked child works in
FOLDER/POINT until its 12th commit and leaves by `os._exit`, before or after that commit's COMMIT.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from canary.journal import Journal
from tests.canary.world import Behaviour, World, plan

SECONDS = 16.0


def small_world(folder: Path) -> World:
    """Deterministic: the same folder-independent history every time."""
    quick = {"tokens": 5, "acceptance": 0.7}
    world = World(folder, seed=5, routers=1, requests_per_second=6.0)
    world.behaviours = {"baseline": Behaviour(tokens=5), "speculative": Behaviour(itl_seconds=0.02, **quick)}
    return world


def live(world: World) -> None:
    """A rollout with a pause, a step and a hard failure in it."""
    world.run(1)
    steps = [{"weight": 30, "bake": "4s"}, {"weight": 60, "bake": "8s"}, {"weight": 100}]
    world.command("start", plan=plan(steps=steps, min_requests=3, min_windows=1, last_step="no_harm"))
    world.run(SECONDS / 2)
    world.command("pause")
    world.run(2)
    world.command("resume")
    world.run(SECONDS / 2)


def on_commit(act: Callable[[int, bool], None]) -> None:
    """Call `act(number, is_durable)` twice around every COMMIT from now on."""
    write, commit, number = Journal._write, Journal.commit, 0

    def watched_write(self: Journal, *arguments: Any) -> None:
        nonlocal number
        number += 1
        write(self, *arguments)
        act(number, False)

    def watched_commit(self: Journal, *arguments: Any) -> None:
        commit(self, *arguments)
        act(number, True)

    Journal._write, Journal.commit = watched_write, watched_commit  # type: ignore[method-assign]


def die(place: Path, number: int, durable: bool) -> NoReturn:
    def act(at: int, is_durable: bool) -> None:
        if (at, is_durable) == (number, durable):
            os._exit(9)

    on_commit(act)
    live(small_world(place))
    os._exit(0)


def main() -> None:
    folder = Path(sys.argv[1])
    for point in sys.argv[2:]:
        number, _, side = point.partition("-")
        place = folder / point
        place.mkdir()
        child = os.fork()
        if child == 0:
            die(place, int(number), side == "after")
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != 9:
            sys.exit(f"{point} was never reached")


if __name__ == "__main__":
    main()

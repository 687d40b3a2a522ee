"""Runs the same world again and again, each time killed without warning at one write to the journal.

`python -m tests.canary.killed FOLDER POINT…`: for every POINT, such as `12-COMMIT`, a forked child works in
FOLDER/POINT until its 12th commit and is killed (SIGKILL) before that commit's COMMIT; `12-0` is before its first
statement, `12-after` when it has returned.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import sqlalchemy as sa

from canary.journal import Journal
from tests.canary.world import Behaviour, World, plan

SECONDS = 16.0
Watcher = Callable[[int, str], None]


def small_world(folder: Path) -> World:
    """Deterministic: the same folder-independent history every time."""
    quick = {"tokens": 5, "acceptance": 0.7}
    world = World(folder, seed=5, routers=1, requests_per_second=6.0, step_seconds=0.5)
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


@contextmanager
def watched(act: Watcher) -> Iterator[None]:
    """Call `act(number, point)` at every write point of every commit; point is a statement's index, COMMIT or after."""
    commit = Journal.commit
    number, statement, is_inside = 0, 0, False

    def before_statement(*_: Any) -> None:
        nonlocal statement
        if is_inside:
            act(number, str(statement))
            statement += 1

    def before_commit(_: sa.Connection) -> None:
        if is_inside:
            act(number, "COMMIT")

    def watched_commit(self: Journal, *arguments: Any) -> None:
        nonlocal number, statement, is_inside
        number, statement, is_inside = number + 1, 0, True
        try:
            commit(self, *arguments)
        finally:
            is_inside = False
        act(number, "after")

    Journal.commit = watched_commit  # type: ignore[method-assign]
    sa.event.listen(sa.Engine, "before_cursor_execute", before_statement)
    sa.event.listen(sa.Engine, "commit", before_commit)
    try:
        yield
    finally:
        Journal.commit = commit  # type: ignore[method-assign]
        sa.event.remove(sa.Engine, "before_cursor_execute", before_statement)
        sa.event.remove(sa.Engine, "commit", before_commit)


def die(place: Path, fatal: str) -> NoReturn:
    def act(number: int, point: str) -> None:
        if f"{number}-{point}" == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    world = small_world(place)
    with watched(act):
        live(world)
    os._exit(0)


def main() -> None:
    folder = Path(sys.argv[1])
    for point in sys.argv[2:]:
        place = folder / point
        place.mkdir()
        child = os.fork()
        if child == 0:
            die(place, point)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            sys.exit(f"{point} was never reached")


if __name__ == "__main__":
    main()

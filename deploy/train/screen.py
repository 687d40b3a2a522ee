"""What a training shows: lines, and one bar at a time with the time that is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Advance = Callable[[int, str], None]
"""How many more are done, and a word about them."""


class Screen:
    """A log or a pipe gets the lines alone."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False)

    @contextmanager
    def bar(self, what: str, total: int) -> Iterator[Advance]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=self._console, disable=not self._console.is_terminal) as progress:
            task = progress.add_task(what, total=total, note="")
            yield lambda count, note: progress.update(task, advance=count, note=note)

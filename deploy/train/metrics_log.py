"""What happened in which step of a training: one JSON object a line, the same after a resume as without one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class MetricsLog:
    """Lines have a `step`: losses and learning rate, or what was measured on held-out answers after it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def keep_until(self, step: int) -> None:
        """Forget what came after `step` steps, for it will be done again."""
        kept = [line for line in self.lines() if line["step"] <= step]
        unfinished = self._path.with_suffix(".unfinished")
        unfinished.write_text("".join(f"{json.dumps(line)}\n" for line in kept))
        os.replace(unfinished, self._path)

    def write(self, line: Line) -> None:
        with self._path.open("a") as stream:
            stream.write(f"{json.dumps(line)}\n")

    def lines(self) -> list[Line]:
        """All whole lines; a kill may have cut the last one short."""
        if not self._path.exists():
            return []
        whole = self._path.read_text().split("\n")[:-1]
        return [json.loads(line) for line in whole]

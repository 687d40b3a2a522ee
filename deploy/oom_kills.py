"""How many processes has the kernel killed around here for want of memory? It tells no victim, but it counts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
LOOKS = 3
"""A second apart: news of a death takes less than that many."""


@dataclass(frozen=True, slots=True)
class OomCounter:
    """Counts for all processes that can read the same file: a container's, or else the whole machine's."""

    scope: str
    """Names what it counts for."""
    file: Path

    def read(self) -> int:
        """Kills since the start of what it counts for; 0 where the file is gone."""
        try:
            lines = self.file.read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def find_counter(root: Path = ROOT) -> OomCounter | None:
    """The narrowest one: of this process's control group (cgroup v2), else of the machine; None without either."""
    try:
        boot = (root / "proc/sys/kernel/random/boot_id").read_text().strip()
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((group.removeprefix("0::/") for group in groups if group.startswith("0::/")), "")
    folder = root / "sys/fs/cgroup" / own
    if (folder / "memory.events").is_file():
        # Every container sees its own group as the root; the number of the folder tells them apart.
        return OomCounter(f"{boot}/{folder.stat().st_ino}", folder / "memory.events")
    vmstat = root / "proc/vmstat"
    return OomCounter(boot, vmstat) if vmstat.is_file() else None


class RecentKills:
    """Has the kernel killed within the last few looks?"""

    def __init__(self, counter: OomCounter | None) -> None:
        self._counter = counter
        self._counts: deque[int] = deque(maxlen=LOOKS)

    def look(self) -> None:
        if self._counter is not None:
            self._counts.append(self._counter.read())

    def happened(self, scope: str) -> bool:
        """Whether they may have hit a process of that scope; False where the count is of another, or of none."""
        if self._counter is None or self._counter.scope != scope or not self._counts:
            return False
        return self._counter.read() > self._counts[0]

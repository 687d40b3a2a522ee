"""Which processes belong to a local fleet, and how they are ended: all of them, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterable

import psutil

MARKER = "FLEET_INSTANCE"


def members(instance: str) -> list[psutil.Process]:
    """Every process of the fleet but this one.

    They carry the instance in their environment. Some of Ray's overwrite theirs with a title, so descendants of
    marked processes count too.
    """
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        if _is_marked(process, instance):
            found[process.pid] = process
            found |= {child.pid: child for child in _descendants(process)}
    found.pop(os.getpid(), None)
    return list(found.values())


def end(processes: Iterable[psutil.Process], grace_seconds: float) -> None:
    """SIGTERM, then SIGKILL for those that are still there after the grace; returns when all are gone."""
    remaining = list(processes)
    for process in remaining:
        _signal(process, force=False)
    _, remaining = psutil.wait_procs(remaining, timeout=grace_seconds)
    for process in remaining:
        _signal(process, force=True)
    psutil.wait_procs(remaining, timeout=grace_seconds)


def end_all(instance: str, grace_seconds: float = 3.0) -> None:
    """End every process of the fleet; looks again for those that were starting meanwhile."""
    while found := members(instance):
        end(found, grace_seconds)


def _is_marked(process: psutil.Process, instance: str) -> bool:
    try:
        return process.environ().get(MARKER) == instance
    except (psutil.Error, OSError):
        return False


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _signal(process: psutil.Process, *, force: bool) -> None:
    try:
        process.kill() if force else process.terminate()
    except psutil.NoSuchProcess:
        return

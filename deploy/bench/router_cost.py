"""What does a token cost on its way through the router, beside plain handle streaming of Ray Serve, in the same run?

Both stand before a worker without a model and behind the same HAProxy, and the same reader reads them in turn.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console

from deploy.bench.router_cost_report import OFF_THE_WAY, ON_THE_WAY, Trial, render, summarise
from deploy.bench.sse_probe import Arrivals, read_stream
from deploy.bench.stand_in_fleet import MODEL_NAME
from deploy.manifest import LOOPBACK, RAY_ENVIRONMENT
from deploy.processes import MARKER, end_all, members
from fleet.errors import FleetError, Unavailable

ROUTES = {"fleet": "/v1/chat/completions", "plain handles": "/plain"}
TOKENS = {
    ("fleet", "paced"): 400,
    ("plain handles", "paced"): 400,
    ("fleet", "unpaced"): 4000,
    ("plain handles", "unpaced"): 600,
}
"""Per stream: some seconds of each."""
WARM_UP_TOKENS = 20
ROLES = {
    "ray::ServeReplica:router:": "router",
    "ray::ServeReplica:plain:PlainWorker": "worker",
    "ray::ServeReplica:plain:Plain": "router",
    "ray::ServeReplica:path-": "worker",
}
"""Start of a Serve process's title -> what it is on the way of a token."""
PROXIES = ("haproxy", "ray::ProxyActor")
"""Serve falls back on its own proxy while HAProxy does not know a replica yet."""
PROXY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Usage:
    """One process: its role and the CPU seconds that it has used."""

    role: str
    seconds: float


def measure(streams: int, repetitions: int) -> list[Trial]:
    """Both variants in turn, A B A B, at 10 ms per token and as fast as it can.

    Raises `Unavailable` where the applications do not come up or tokens get lost, and `ReplicaLost` where a stream
    breaks off.
    """
    trials = []
    with _host() as (port, instance):
        _await_haproxy(instance)
        for variant in ROUTES:
            for pace in ("paced", "unpaced"):
                asyncio.run(_read_all(variant, pace, port, streams, WARM_UP_TOKENS))
        for _ in range(repetitions):
            for pace in ("paced", "unpaced"):
                trials += [_trial(variant, pace, port, instance, streams) for variant in ROUTES]
    return trials


def role_of(name: str, title: str) -> str:
    """What the process of that name and command line is on the way of a token; the rest is Ray's own."""
    if name.startswith(PROXIES):
        return "proxy"
    return next((role for start, role in ROLES.items() if title.startswith(start)), "ray")


def cpu_used(before: Mapping[int, Usage], after: Mapping[int, Usage]) -> dict[str, float]:
    """CPU seconds by role between two looks at the processes, by process id.

    Raises `Unavailable` where a process on the way has been replaced: what it used is lost, and so is the trial.
    """
    used = dict.fromkeys((*ON_THE_WAY, *OFF_THE_WAY), 0.0)
    for pid, usage in before.items():
        if pid not in after and usage.role in ("router", "worker"):
            raise Unavailable(f"the {usage.role} was replaced during the measurement")
    for pid, usage in after.items():
        earlier = before.get(pid)
        used[usage.role] += usage.seconds - (earlier.seconds if earlier else 0.0)
    return used


def main(
    streams: Annotated[int, typer.Option(min=1, help="Streams open at once.")] = 32,
    repetitions: Annotated[int, typer.Option(min=1, help="Trials of each variant and pace.")] = 3,
) -> None:
    """Measure the cost of the token path beside plain handle streaming."""
    try:
        trials = measure(streams, repetitions)
    except FleetError as error:
        Console(stderr=True).print(f"error: {error}", soft_wrap=True, markup=False)
        raise typer.Exit(1) from error
    Console().print(render(trials))


def _trial(variant: str, pace: str, port: int, instance: str, streams: int) -> Trial:
    before = _look(instance)
    started = time.monotonic_ns()
    arrivals = asyncio.run(_read_all(variant, pace, port, streams, TOKENS[variant, pace]))
    return summarise(variant, pace, arrivals, started, cpu_used(before, _look(instance)))


async def _read_all(variant: str, pace: str, port: int, streams: int, tokens: int) -> list[Arrivals]:
    body = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": "Count."}],
        "max_tokens": tokens,
        "stream": True,
    }
    headers = {"x-fleet-path": pace}
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(read_stream(LOOPBACK, port, ROUTES[variant], headers, body)) for _ in range(streams)]
    arrivals = [task.result() for task in tasks]
    if missing := sum(tokens - len(stream.arrived) for stream in arrivals):
        raise Unavailable(f"{variant} lost {missing} tokens on the way")
    return arrivals


def _look(instance: str) -> dict[int, Usage]:
    """CPU time used so far by every process, this one (the reader) included."""
    found = {os.getpid(): Usage("client", time.process_time())}
    for process in members(instance):
        try:
            times = process.cpu_times()
            role = role_of(process.name(), " ".join(process.cmdline()))
        except psutil.NoSuchProcess:
            continue
        found[process.pid] = Usage(role, times.user + times.system)
    return found


@contextmanager
def _host() -> Iterator[tuple[int, str]]:
    """Port and instance of a running `router_cost_host`, of which nothing is left afterwards."""
    instance = f"router-cost-{uuid.uuid4().hex[:8]}"
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="fleet-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "host.log"
        with (
            log.open("w") as errors,
            subprocess.Popen(
                [sys.executable, "-m", "deploy.bench.router_cost_host", str(port), folder],
                env={**os.environ, **RAY_ENVIRONMENT, MARKER: instance},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as host,
        ):
            try:
                if not any(line == "ready\n" for line in host.stdout or ()):
                    raise Unavailable(f"the fleet under measurement did not start:\n{log.read_text()[-2000:]}")
                yield port, instance
            finally:
                end_all(instance)


def _await_haproxy(instance: str) -> None:
    """Serve answers through its own, slower proxy until HAProxy has started."""
    deadline = time.monotonic() + PROXY_SECONDS
    while not any(process.name() == "haproxy" for process in members(instance)):
        if time.monotonic() > deadline:
            raise Unavailable("HAProxy does not start")
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    typer.run(main)

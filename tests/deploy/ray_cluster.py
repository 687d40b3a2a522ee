"""A Ray cluster of one node as an operator starts it, with everything of its own: ports, folders, processes."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from deploy.manifest import RAY_ENVIRONMENT
from deploy.processes import MARKER, end_all

SCRIPTS = Path(sys.executable).parent


@dataclass(frozen=True)
class Cluster:
    """A running head node."""

    environment: Mapping[str, str]
    dashboard: str

    def applications(self) -> dict[str, Any]:
        """What `serve status` shows; a process of its own for every look would load a small machine."""
        headers = {"authorization": f"Bearer {self.environment['RAY_AUTH_TOKEN']}"}
        answer = httpx.get(f"{self.dashboard}/api/serve/applications/", headers=headers, timeout=30)
        assert answer.status_code == httpx.codes.OK, answer.text
        found: dict[str, Any] = answer.json()["applications"]
        return found

    def serve(self, *arguments: str) -> str:
        """Run Ray's own `serve` command; its output."""
        return _run([str(SCRIPTS / "serve"), *arguments], self.environment)


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@contextmanager
def ray_cluster(cpus: int) -> Iterator[Cluster]:
    """`ray start --head`, with the environment that the header of serve.yaml asks for."""
    instance = f"test-{secrets.token_hex(4)}"
    gcs, dashboard, agent, proxy, fallback, metrics, stats = free_ports(7)
    # Sockets below it must stay shorter than 108 characters.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        haproxy = Path(folder) / "haproxy"
        environment = (
            os.environ
            | RAY_ENVIRONMENT
            | {
                MARKER: instance,
                "RAY_ADDRESS": f"127.0.0.1:{gcs}",
                "RAY_DASHBOARD_ADDRESS": f"http://127.0.0.1:{dashboard}",
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN": secrets.token_hex(32),
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_raylet_start_wait_time_s": "120",
                "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(haproxy / "haproxy.cfg"),
                "RAY_SERVE_HAPROXY_SOCKET_PATH": str(haproxy / "admin.sock"),
                "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(haproxy),
                "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(haproxy / "server-state"),
                "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
                "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
                "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback),
            }
        )
        options = {
            "port": gcs,
            "dashboard-port": dashboard,
            "dashboard-agent-listen-port": agent,
            "ray-client-server-port": proxy,
            "num-cpus": cpus,
            "node-ip-address": "127.0.0.1",
            "temp-dir": folder,
            "object-store-memory": 100 * 2**20,
        }
        flags = [f"--{name}={value}" for name, value in options.items()]
        try:
            _run([str(SCRIPTS / "ray"), "start", "--head", "--disable-usage-stats", *flags], environment)
            yield Cluster(environment, environment["RAY_DASHBOARD_ADDRESS"])
        finally:
            end_all(instance)


def _run(command: list[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout

"""HAProxy in front of a port of this machine, with the config that Serve writes for the fleet; no Ray is started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from deploy.manifest import RAY_ENVIRONMENT
from tests.deploy.ray_cluster import free_ports

# In a process of its own: Ray reads the environment when it is imported.
RENDER = """
import sys
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig, get_haproxy_binary
from ray.serve.config import HTTPOptions

front, back = map(int, sys.argv[1:])
options = HTTPOptions(host="127.0.0.1", port=front)
config = HAProxyConfig(http_options=options, is_head=True, has_received_routes=True, has_received_servers=True)
router = BackendConfig("router", "/", servers=[ServerConfig("replica", "127.0.0.1", back)], app_name="router")
api = HAProxyApi(config, {"router": router})
api._generate_config_file_internal()
print(get_haproxy_binary())
"""


@contextmanager
def haproxy(folder: Path, back: int, changes: Mapping[str, str] | None = None) -> Iterator[int]:
    """The port of an HAProxy before `back`; `changes` are replacements in the values of `RAY_ENVIRONMENT`."""
    front, metrics, stats = free_ports(3)
    settings = {
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    }
    for name, value in RAY_ENVIRONMENT.items():
        settings[name] = value
        for old, new in (changes or {}).items():
            settings[name] = settings[name].replace(old, new)
    command = [sys.executable, "-c", RENDER, str(front), str(back)]
    rendered = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=True)
    binary = rendered.stdout.splitlines()[-1]
    process = subprocess.Popen([binary, "-db", "-dR", "-f", str(folder / "haproxy.cfg")], stderr=subprocess.DEVNULL)
    try:
        _await_backend(process, front)
        yield front
    finally:
        process.kill()
        process.wait()


def _await_backend(process: subprocess.Popen[bytes], front: int) -> None:
    """Until HAProxy has seen that its backend is up."""
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{front}/version", timeout=5).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError("HAProxy never reached its backend")

"""HAProxy in front of a port of this machine, with the config that Serve writes for the fleet; no Ray is started."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx

from deploy.manifest import RAY_ENVIRONMENT
from tests.deploy.ray_cluster import free_ports

STARTING_SECONDS = 120.0

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


@asynccontextmanager
async def haproxy(folder: Path, back: int, changes: Mapping[str, str] | None = None) -> AsyncIterator[int]:
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
    rendered = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RENDER, str(front), str(back), env=os.environ | settings, stdout=subprocess.PIPE
    )
    binary = (await rendered.communicate())[0].decode().splitlines()[-1]
    options = ("-db", "-dR", "-f", str(folder / "haproxy.cfg"))
    process = await asyncio.create_subprocess_exec(binary, *options, stderr=subprocess.DEVNULL)
    try:
        await _until_it_answers(front)
        yield front
    finally:
        process.kill()
        await process.wait()


async def _until_it_answers(front: int) -> None:
    async with httpx.AsyncClient() as http, asyncio.timeout(STARTING_SECONDS):
        while True:
            with suppress(httpx.TransportError):
                if (await http.get(f"http://127.0.0.1:{front}/version")).status_code == httpx.codes.OK:
                    return
            await asyncio.sleep(0.05)

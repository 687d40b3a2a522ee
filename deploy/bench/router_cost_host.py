"""The process under measurement: Ray with the fleet's router and a plain Serve application, each before stand-ins.

Says "ready" on standard output, and ends when its standard input is closed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from deploy.bench import stand_in_app
from deploy.manifest import LOOPBACK, app_of, build_manifest, local_cpus
from fleet.config import ControllerConfig, FleetConfig, ModelConfig, PathConfig, RouterConfig
from fleet.errors import Unavailable

START_SECONDS = 300.0


def fleet_config(port: int, folder: Path, served_name: str) -> FleetConfig:
    """A fleet of two paths, one for each pace of the stand-in."""
    return FleetConfig(
        model=ModelConfig(served_name=served_name),
        paths={path: PathConfig(num_cpus=0.1) for path in stand_in_app.STEP_SECONDS},
        stable=next(iter(stand_in_app.STEP_SECONDS)),
        router=RouterConfig(num_cpus=0.1, admin_token=None),
        controller=ControllerConfig(journal=folder / "journal.sqlite3", num_cpus=0.1),
        host=LOOPBACK,
        port=port,
    )


def manifest(config: FleetConfig) -> dict[str, Any]:
    """The fleet's own Serve config with stand-ins for its target workers, and the plain application under /plain."""
    fleet = build_manifest(config)
    for application in fleet["applications"]:
        if application["name"] in map(app_of, config.paths):
            application["import_path"] = f"{stand_in_app.__name__}:path"
    plain = {"name": "plain", "route_prefix": "/plain", "import_path": f"{stand_in_app.__name__}:plain", "args": {}}
    fleet["applications"].append(plain)
    return fleet


def main() -> None:
    port, folder, served_name = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    config = fleet_config(port, folder, served_name)
    ray.init(
        "local",
        num_cpus=local_cpus(config, os.cpu_count() or 1) + 2,
        include_dashboard=False,
        namespace="fleet",
        log_to_driver=False,
        _temp_dir=str(folder / "ray"),
        _node_ip_address=LOOPBACK,
    )
    try:
        serve.start(proxy_location="HeadOnly", http_options={"host": config.host, "port": config.port})
        client = _get_global_client()
        assert client is not None  # serve.start has just made it
        client.deploy_apps(ServeDeploySchema.model_validate(manifest(config)))
        _await_running()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        ray.shutdown()


def _await_running() -> None:
    deadline = time.monotonic() + START_SECONDS
    statuses: dict[str, str] = {}
    while time.monotonic() < deadline:
        applications = serve.status().applications
        statuses = {name: item.status.value for name, item in applications.items()}
        if statuses and set(statuses.values()) == {"RUNNING"}:
            return
        if "DEPLOY_FAILED" in statuses.values():
            break
        time.sleep(0.2)
    raise Unavailable(f"the applications do not run: {statuses}")


if __name__ == "__main__":
    main()

"""The process under measurement: Ray with the fleet's router and a plain Serve application, each before stand-ins.

Says "ready" on standard output, and ends when its standard input is closed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from deploy.bench.stand_in_fleet import fleet_config, manifest
from deploy.manifest import LOOPBACK, local_cpus
from fleet.errors import Unavailable

START_SECONDS = 300.0


def main() -> None:
    port, folder = int(sys.argv[1]), Path(sys.argv[2])
    config = fleet_config(port, folder)
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
        for name, item in applications.items():
            if item.status.value == "DEPLOY_FAILED":
                reasons = [deployment.message for deployment in item.deployments.values()]
                raise Unavailable(f"application '{name}' failed: {item.message} {' '.join(reasons)}")
        time.sleep(0.2)
    raise Unavailable(f"the applications do not run: {statuses}")


if __name__ == "__main__":
    main()

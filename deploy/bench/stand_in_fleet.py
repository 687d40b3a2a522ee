"""Which Serve applications are measured: the fleet's own with stand-ins for its workers, and a plain one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploy.manifest import LOOPBACK, app_of, build_manifest
from fleet.config import ControllerConfig, FleetConfig, ModelConfig, PathConfig, RouterConfig

STEP_SECONDS = {"paced": 0.010, "unpaced": 0.0}
"""Path name -> time between the tokens of a stream."""
MODEL_NAME = "stand-in"
BUILDERS = "deploy.bench.stand_in_app"


def fleet_config(port: int, folder: Path) -> FleetConfig:
    """A fleet of two paths, one for each pace."""
    return FleetConfig(
        model=ModelConfig(served_name=MODEL_NAME),
        paths={path: PathConfig(num_cpus=0.1) for path in STEP_SECONDS},
        stable="paced",
        router=RouterConfig(num_cpus=0.1),
        controller=ControllerConfig(journal=str(folder / "journal.sqlite3"), num_cpus=0.1),
        host=LOOPBACK,
        port=port,
    )


def manifest(config: FleetConfig) -> dict[str, Any]:
    """The fleet's own Serve config with other path builders, and the plain application under /plain."""
    fleet = build_manifest(config)
    for application in fleet["applications"]:
        if application["name"] in map(app_of, config.paths):
            application["import_path"] = f"{BUILDERS}:path"
    plain = {"name": "plain", "route_prefix": "/plain", "import_path": f"{BUILDERS}:plain", "args": {}}
    fleet["applications"].append(plain)
    return fleet

"""The Serve config inside `manifests/kuberay.yaml`: the shipped fleet, on every interface, its journal on a volume."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import yaml

from deploy.manifest import CONTROLLER_APP, build_manifest
from fleet.config import FleetConfig

JOURNAL = Path("/var/lib/fleet/journal.sqlite3")
JOURNAL_RESOURCE = "fleet_journal"
"""Ray resource of the one pod that mounts the journal's volume."""

_BLOCK = re.compile(r"(?<=\n  serveConfigV2: \|\n).*?(?=\n  \w)", re.DOTALL)


def serve_config(config: FleetConfig) -> dict[str, Any]:
    """The fleet's Serve config for pods that come and go: only the controller is bound to a place, the journal's."""
    controller = config.controller.model_copy(update={"journal": str(JOURNAL)})
    manifest = build_manifest(config.model_copy(update={"host": "0.0.0.0", "controller": controller}))
    (application,) = (item for item in manifest["applications"] if item["name"] == CONTROLLER_APP)
    application["deployments"][0]["ray_actor_options"]["resources"] = {JOURNAL_RESOURCE: 1}
    return manifest


def with_serve_config(service: str, config: FleetConfig) -> str:
    """The text of a RayService manifest with its `serveConfigV2` renewed; the rest stays as it was written."""
    body = yaml.safe_dump(serve_config(config), sort_keys=False, width=110).rstrip()
    return _BLOCK.sub(lambda _: textwrap.indent(body, "    "), service, count=1)

"""The process that owns a local fleet: it starts Ray, deploys, says how far it is, and ends everything.

`fleet up` runs it as `python -m deploy.fleet_host CONFIG FOLDER`, with the first state file written, and follows that.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

import httpx
import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatusOverview, ServeDeploySchema

from canary.status import FleetStatus
from deploy.admin_client import AdminClient
from deploy.fleet_state import FleetState, Phase, read_state, write_state
from deploy.manifest import LOOPBACK, build_manifest, local_cpus
from deploy.processes import end_all
from fleet.config import FleetConfig, load_fleet_config, resolve_secret
from fleet.errors import ConfigError, FleetError, Unavailable

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
START_SECONDS = 900.0
"""Longest start, a first download of the model not counted."""
PROBE_SECONDS = 60.0
DRAFT_SECONDS = 120.0
OBJECT_STORE_BYTES = 100 * 2**20
"""Tokens never pass through Ray's object store."""


class FleetHost:
    """One local fleet from start to end."""

    def __init__(self, config: FleetConfig, folder: Path, state: FleetState) -> None:
        self._config = config
        self._folder = folder
        self._state = state

    def run(self) -> NoReturn:
        """Until SIGTERM, or until the start has failed; ends the process itself."""
        signal.signal(signal.SIGTERM, self._end)
        try:
            self._note("starting")
            self._start()
            self._note("", phase=Phase.READY)
            while True:
                signal.pause()
        except FleetError as error:
            self._fail(str(error), 2 if isinstance(error, ConfigError) else 1)
        except Exception as error:
            # The top of the process; Ray raises bare Exceptions here, for instance when a node starts too slowly.
            logger.exception("the fleet could not be started")
            self._fail(f"{type(error).__name__}: {_last_line(str(error))}", 1)
        self._end()

    def _end(self, signal_number: int | None = None, frame: FrameType | None = None) -> NoReturn:
        """End every process of the fleet, this one last.

        Nothing is unwound: an exception raised in the middle of Ray's code may be swallowed there, and neither a
        model conversion in its thread nor Ray's own clean-up may hold up the end.
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if signal_number is not None:
            self._note("", phase=Phase.STOPPED)
        end_all(self._state.instance)
        os._exit(self._state.exit_code)

    def _start(self) -> None:
        _require_free(self._config.host, self._config.port)
        resolved = ThreadPoolExecutor(1).submit(self._resolve)
        self._start_ray()
        config = resolved.result()
        self._note("deploying")
        client = _get_global_client()
        assert client is not None, "serve.start has just made it"
        client.deploy_apps(ServeDeploySchema.model_validate(build_manifest(config)))
        self._await_running()
        self._probe_paths()
        self._await_drafts()

    def _resolve(self) -> FleetConfig:
        """The config with every model in a local folder, so that the fleet's processes only have to read it."""
        from deploy.local_models import with_local_models  # torch is imported while Ray starts

        return with_local_models(self._config, self._note)

    def _start_ray(self) -> None:
        ray.init(
            "local",
            num_cpus=local_cpus(self._config, os.cpu_count() or 1),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            namespace="fleet",
            log_to_driver=False,
            # Ray opens its folder to everyone; the one around it stays private.
            _temp_dir=str(Path(self._state.ray_folder) / "ray"),
            _node_ip_address=LOOPBACK,
        )
        signal.signal(signal.SIGTERM, self._end)  # ray.init puts its own handler there
        serve.start(proxy_location="HeadOnly", http_options={"host": self._config.host, "port": self._config.port})

    def _await_running(self) -> None:
        """Until every application runs; raises with Serve's reason when one cannot."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            applications = serve.status().applications
            statuses = {name: str(item.status.value) for name, item in applications.items()}
            self._note("loading", applications=statuses)
            for name, item in applications.items():
                if item.status.value == "DEPLOY_FAILED":
                    raise Unavailable(f"application '{name}' failed: {_reason(item)}")
            if statuses and set(statuses.values()) == {"RUNNING"}:
                return
            time.sleep(POLL_SECONDS)
        raise Unavailable(f"not ready after {START_SECONDS:.0f} s: {statuses}")

    def _probe_paths(self) -> None:
        """One real token from each path through the public port."""
        keys = self._config.router.api_keys
        headers = {"authorization": f"Bearer {resolve_secret(next(iter(keys.values())))}"} if keys else {}
        body = {"model": self._state.model, "prompt": "Hello", "max_tokens": 1}
        with httpx.Client(base_url=self._state.url, headers=headers, timeout=PROBE_SECONDS, trust_env=False) as client:
            for path in self._config.paths:
                self._note(f"asking path '{path}' for a first token")
                _until_answered(partial(client.post, "/v1/completions", json=body, headers={"x-fleet-path": path}))

    def _await_drafts(self) -> None:
        """Let drafts join their targets, so that the first request speculates; a fleet serves without them too."""
        deadline = time.monotonic() + DRAFT_SECONDS
        with AdminClient(self._state.url, resolve_secret(self._state.admin_token)) as admin:
            while (missing := lost_drafts(admin.status())) and time.monotonic() < deadline:
                self._note(f"waiting for the draft of path '{missing[0]}'")
                time.sleep(POLL_SECONDS)

    def _note(self, message: str, *, phase: Phase = Phase.STARTING, applications: dict[str, str] | None = None) -> None:
        changes = {"message": message, "phase": phase, "applications": applications or self._state.applications}
        state = self._state.model_copy(update=changes)
        if state != self._state:
            self._state = state
            write_state(self._folder, state)

    def _fail(self, message: str, exit_code: int) -> None:
        self._state = self._state.model_copy(update={"exit_code": exit_code})
        self._note(message, phase=Phase.FAILED)


def local_config(config: FleetConfig, folder: Path, state: FleetState) -> FleetConfig:
    """The config as one machine runs it: an admin token for the CLI, and the journal beside the other state."""
    router = config.router.model_copy(update={"admin_token": state.admin_token})
    controller = config.controller
    if "journal" not in controller.model_fields_set:
        controller = controller.model_copy(update={"journal": str(folder / "journal.sqlite3")})
    return config.model_copy(update={"router": router, "controller": controller})


def lost_drafts(status: FleetStatus) -> list[str]:
    """Paths that have a draft worker and at least one replica that it has not joined."""
    return [path["path"] for path in status["paths"] if path["draft"] == "lost"]


def main(config_file: str, folder: str) -> NoReturn:
    """Host the fleet described by the state file that `fleet up` wrote; the lock came with it."""
    state = read_state(Path(folder))
    if state is None:
        raise ConfigError(f"{folder} has no state file; start a fleet with `fleet up`")
    config = local_config(load_fleet_config(Path(config_file)), Path(folder), state)
    FleetHost(config, Path(folder), state.model_copy(update={"pid": os.getpid()})).run()


def _require_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another `port`") from error


def _until_answered(post: Callable[[], httpx.Response]) -> None:
    deadline = time.monotonic() + PROBE_SECONDS
    problem = "no answer"
    while time.monotonic() < deadline:
        try:
            answer = post()
        except httpx.TransportError as error:
            problem = str(error)
        else:
            if answer.status_code == httpx.codes.OK:
                return
            problem = f"HTTP {answer.status_code}: {answer.text.strip()[:300]}"
        time.sleep(POLL_SECONDS)
    raise Unavailable(f"the fleet runs but does not answer: {problem}")


def _reason(application: ApplicationStatusOverview) -> str:
    """Why an application failed: the last line of its deployment's traceback says it best."""
    deployments = [item.message for item in application.deployments.values() if item.message]
    return _last_line(next(iter(deployments), application.message))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The local fleet seen from the command line: start its host process, follow it, stop it without a trace."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from deploy.fleet_state import (
    ADMIN_TOKEN_FILE,
    LOG_FILE,
    RAY_TOKEN_FILE,
    FleetState,
    Phase,
    hold_lock,
    is_running,
    read_state,
    secret_file,
    write_state,
)
from deploy.manifest import RAY_ENVIRONMENT, model_name
from deploy.processes import MARKER, end, end_all
from fleet.config import FleetConfig
from fleet.errors import FleetError, Unavailable

POLL_SECONDS = 0.1
STOP_SECONDS = 20.0


class HostFailed(FleetError):
    """The fleet did not come up or broke down; everything of it has been stopped. `exit_code` is the command's."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def start(config: FleetConfig, config_file: Path, folder: Path) -> FleetState:
    """Start the host process in a session of its own; `Conflict` when a fleet already runs here."""
    with hold_lock(folder) as lock:
        previous = read_state(folder)
        if previous is not None:
            _sweep(previous)
        state = FleetState(
            instance=secrets.token_hex(8),
            pid=0,
            url=f"http://{config.host}:{config.port}",
            model=model_name(config.model),
            admin_token=config.router.admin_token or f"file:{secret_file(folder, ADMIN_TOKEN_FILE)}",
            ray_folder=tempfile.mkdtemp(prefix="fleet-"),
        )
        write_state(folder, state)
        with (folder / LOG_FILE).open("wb") as log:
            host = subprocess.Popen(
                [sys.executable, "-m", "deploy.fleet_host", str(config_file.resolve()), str(folder.resolve())],
                env=os.environ | host_environment(state, secret_file(folder, RAY_TOKEN_FILE)),
                pass_fds=[lock],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    return state.model_copy(update={"pid": host.pid})


def follow(started: FleetState, folder: Path, show: Callable[[FleetState], None]) -> FleetState:
    """Show every new state until the fleet is ready; `HostFailed` with the reason when it never will be."""
    shown = started
    while shown.phase is not Phase.READY:
        state = read_state(folder)
        if state is not None and state.instance == started.instance and state != shown:
            shown = state
            show(state)
        if shown.phase is Phase.FAILED:
            stop(folder)
            raise HostFailed(f"{shown.message} (logs: {folder / LOG_FILE}, {shown.ray_folder})", shown.exit_code)
        if not _is_alive(started.pid):
            stop(folder)
            raise HostFailed(f"the fleet's host process ended early; see {folder / LOG_FILE}", 1)
        time.sleep(POLL_SECONDS)
    return shown


def wait_until_stopped(started: FleetState, folder: Path) -> bool:
    """Sleep as long as the host process lives; whether it ended in order, by `fleet down`."""
    while _is_alive(started.pid):
        time.sleep(POLL_SECONDS)
    state = read_state(folder)
    return state is not None and state.phase is Phase.STOPPED


def stop(folder: Path) -> bool:
    """End every process of the folder's fleet; False when there was none."""
    state = read_state(folder)
    if state is None:
        return False
    was_running = is_running(folder)
    _sweep(state, keep_logs=state.phase is Phase.FAILED)
    until = time.monotonic() + STOP_SECONDS
    # A process that has ended still holds its lock until the last of its threads is gone.
    while is_running(folder):
        if time.monotonic() > until:
            raise Unavailable("the fleet's host process did not end; try again")
        time.sleep(POLL_SECONDS)
    return was_running


def host_environment(state: FleetState, ray_token: Path) -> Mapping[str, str]:
    """What Ray must find in its environment: the serving mode, this fleet's own paths, ports and token."""
    proxy = Path(state.ray_folder) / "haproxy"
    return RAY_ENVIRONMENT | {
        MARKER: state.instance,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(ray_token),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray gives its own processes 30 s, too little on a busy machine with two cores.
        "RAY_raylet_start_wait_time_s": "120",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(proxy / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(proxy / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(proxy),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(proxy / "server-state"),
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(_free_port()),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(_free_port()),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(_free_port()),
    }


def _sweep(state: FleetState, *, keep_logs: bool = False) -> None:
    host = [process for process in (_process(state.pid),) if process is not None and _is_host(process, state)]
    end(host, STOP_SECONDS)
    end_all(state.instance)
    if not keep_logs:
        shutil.rmtree(state.ray_folder, ignore_errors=True)


def _is_host(process: psutil.Process, state: FleetState) -> bool:
    try:
        return process.environ().get(MARKER) == state.instance
    except (psutil.Error, OSError):
        return False


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid) if pid else None
    except psutil.NoSuchProcess:
        return None


def _is_alive(pid: int) -> bool:
    process = _process(pid)
    return process is not None and process.status() != psutil.STATUS_ZOMBIE


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""What is known about the local fleet: a small JSON file, and a lock that is held exactly while it runs."""

from __future__ import annotations

import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from fleet.errors import Conflict

STATE_FILE = "fleet.json"
LOCK_FILE = "fleet.lock"
LOG_FILE = "fleet.log"
ADMIN_TOKEN_FILE = "admin_token"
RAY_TOKEN_FILE = "ray_token"


class Phase(StrEnum):
    """Where the local fleet is in its life."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class FleetState(BaseModel):
    """One local fleet, as its host process last wrote it down."""

    model_config = ConfigDict(frozen=True)

    instance: str
    """In the environment of every process of this fleet, under `processes.MARKER`."""
    pid: int
    url: str
    model: str
    ray_folder: str
    """Ray's session and logs; in the temporary folder, for socket paths are short."""
    admin_token: str
    """As in the config: the token, or 'env:NAME' or 'file:PATH'."""
    phase: Phase = Phase.STARTING
    message: str = ""
    """What is being done now, or why it failed."""
    applications: dict[str, str] = {}
    """Serve application -> its status in Serve's words."""
    exit_code: int = 0


def read_state(folder: Path) -> FleetState | None:
    """The last written state, None when there is none that can be read."""
    try:
        return FleetState.model_validate_json((folder / STATE_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def write_state(folder: Path, state: FleetState) -> None:
    """Replace the state in one step, readable by its owner only."""
    _write_private(folder / STATE_FILE, state.model_dump_json())


def secret_file(folder: Path, name: str) -> Path:
    """A file with a random secret, made on first use, readable by its owner only."""
    path = folder / name
    if not path.exists():
        _write_private(path, secrets.token_hex(32))
    return path


def is_running(folder: Path) -> bool:
    """Whether a fleet's host process lives; a stale state file does not count."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / LOCK_FILE).open("w") as file:
        try:
            # Shared, so that two commands that ask at the same moment do not take each other for the fleet.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@contextmanager
def hold_lock(folder: Path) -> Iterator[int]:
    """Be the one local fleet of this folder, or raise `Conflict`.

    Yields the lock's file descriptor: a child that inherits it holds the lock until it ends, however it ends.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict("a local fleet is already running; `fleet status` shows it, `fleet down` stops it") from None
        yield file.fileno()


def _write_private(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(unfinished).replace(path)

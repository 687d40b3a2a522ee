"""Which fleet a command talks to, and with which token."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from typing import Annotated

import typer
from tenacity import Retrying, retry_if_result, stop_after_attempt, wait_fixed

from canary.status import FleetStatus
from deploy.admin_client import AdminClient
from deploy.fleet_state import read_state
from fleet.config import resolve_secret, state_folder

SETTLE_SECONDS = 60
DEFAULT_URL = "http://127.0.0.1:8000"

Url = Annotated[str | None, typer.Option("--url", envvar="FLEET_URL", help="The fleet; default: the local one.")]
Token = Annotated[
    str | None, typer.Option("--token", envvar="FLEET_ADMIN_TOKEN", help="Admin token; default: the local fleet's.")
]


def connect(url: str | None, token: str | None) -> AdminClient:
    """The fleet at `url`, else the local one; the local fleet's token is sent to no other."""
    return AdminClient(*address(url, token))


def base_url() -> str:
    """Where a command measures that was told no URL: as the others, FLEET_URL's fleet, else the local one."""
    return address(os.environ.get("FLEET_URL"), None)[0]


def address(url: str | None, token: str | None) -> tuple[str, str | None]:
    """URL and token of the fleet that `connect` would talk to."""
    state = read_state(state_folder())
    target = (url or (state.url if state else DEFAULT_URL)).rstrip("/")
    if token is None and state is not None and state.url == target:
        token = resolve_secret(state.admin_token)
    return target, token


def settled_status(
    fleet: AdminClient, paths: Collection[str], sleep: Callable[[float], None] = time.sleep
) -> FleetStatus:
    """The fleet's status once all that runs of these paths has told what it is, or as it is after a minute.

    A replica says nothing before its draft worker has said where it runs, which is some seconds after it answers.
    """
    asking = Retrying(
        retry=retry_if_result(lambda status: not _has_told(status, paths)),
        stop=stop_after_attempt(SETTLE_SECONDS),
        wait=wait_fixed(1),
        sleep=sleep,
        retry_error_callback=lambda state: fleet.status(),
    )
    return asking(fleet.status)


def _has_told(status: FleetStatus, paths: Collection[str]) -> bool:
    mine = [path for path in status["paths"] if path["path"] in paths]
    return all(path.get("fingerprint") or not path.get("replicas_ready") for path in mine)


def fingerprints_in(status: FleetStatus) -> dict[str, dict[str, str]]:
    """What the figures of each path depend on; paths without replicas are left out."""
    return {path["path"]: path["fingerprint"] for path in status["paths"] if path.get("fingerprint")}

"""The command line's side of the router's /admin API."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, cast

import httpx

from canary.status import CommandAnswer, FleetStatus
from fleet.errors import BadRequest, Unavailable

TIMEOUT_SECONDS = 15.0
START_HINT = "start one here with `fleet up`, or name another with --url or FLEET_URL"


class AdminClient:
    """Talks to one fleet. Raises `Unavailable` when it does not answer and `BadRequest` when it refuses."""

    def __init__(self, url: str, token: str | None, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=TIMEOUT_SECONDS, transport=transport, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def status(self) -> FleetStatus:
        return cast(FleetStatus, self._call("GET", "/admin/status"))

    def command(self, name: str, arguments: Mapping[str, Any] | None = None) -> CommandAnswer:
        return cast(CommandAnswer, self._call("POST", f"/admin/canary/{name}", dict(arguments or {})))

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        try:
            answer = self._http.request(method, path, json=body)
            value = answer.json()
        except httpx.TransportError as error:
            raise Unavailable(f"no fleet answers at {self.url}: {error}; {START_HINT}") from error
        except ValueError as error:
            raise Unavailable(f"{self.url}{path} answered {answer.status_code} without JSON; is it a fleet?") from error
        if answer.is_success:
            return value
        message = value.get("error", {}).get("message") if isinstance(value, dict) else None
        text = message or f"{method} {path} answered {answer.status_code}"
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            text += " (set FLEET_ADMIN_TOKEN or --token)"
        if answer.is_server_error:
            raise Unavailable(text)
        raise BadRequest(text)

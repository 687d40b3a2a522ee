"""What does a client read where HAProxy answers by itself, because no router can? OpenAI's error shape."""

from __future__ import annotations

import json

from fleet.errors import DeadlineExceeded, FleetError, ReplicaLost, Unavailable
from router.answers import error_body

_ERRORS: tuple[FleetError, ...] = (
    ReplicaLost("the router was lost before it answered; try again"),
    Unavailable("no router is ready; try again"),
    DeadlineExceeded("the router did not answer in time; try again"),
)


def http_error_lines() -> list[str]:
    """`http-error` directives of HAProxy.

    Not of 400 and 408: before a request has been read whole, HAProxy answers with texts that cannot be set.
    """
    return [_line(error) for error in _ERRORS]


def _line(error: FleetError) -> str:
    # Between single quotes HAProxy takes everything as it stands.
    body = json.dumps(error_body(error))
    return f"http-error status {error.http_status} content-type application/json string '{body}' hdr Retry-After 1"

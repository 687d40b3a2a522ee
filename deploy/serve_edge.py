"""What reaches Serve's own HTTP code: requests whose headers it can read and that do not steer it.

Serve's replicas decode some headers as UTF-8 and answer 500 where they cannot; obey others, such as a time limit; and
append a request id to one that is already there. All of that is before and around the router's app.
"""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from router.request_ids import RequestIds

STEERING = frozenset(
    {
        b"serve_multiplexed_model_id",
        b"serve-multiplexed-model-id",
        b"x-request-disconnect-disabled",
        b"x-request-timeout-seconds",
    }
)
"""Headers by which Serve takes orders from clients; the router has bounds of its own."""


def middlewares() -> list[Middleware]:
    """Serve puts these around every HTTP app, the last outermost (RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH)."""
    return [Middleware(ReadableHeaders), Middleware(RequestIds)]


class ReadableHeaders:
    """ASGI middleware: drops steering headers, and writes bytes that are no UTF-8 as backslash escapes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "headers" in scope:
            kept = [(name, _readable(value)) for name, value in scope["headers"] if name.lower() not in STEERING]
            scope = {**scope, "headers": kept}
        await self._app(scope, receive, send)


def _readable(value: bytes) -> bytes:
    """The same bytes for the same value, so that a session keeps its path."""
    return value.decode("utf-8", "backslashreplace").encode()

"""Which id does a request go by? The client's own where it gave a usable one, else one made here; answered once."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

Header = tuple[bytes, bytes]

NAME = b"x-request-id"
USABLE = re.compile(rb"[!-~]{1,128}")


class RequestIds:
    """ASGI middleware: whatever it wraps sees one valid `x-request-id`, and every answer carries exactly one.

    An id that the wrapped app answers with itself, such as one from the body, has precedence. Layers may be nested.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = next(filter(USABLE.fullmatch, _ids(scope["headers"])), None) or secrets.token_hex(16).encode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                message = {**message, "headers": _with_id(headers, next(_ids(headers), request_id))}
            await send(message)

        await self._app({**scope, "headers": _with_id(scope["headers"], request_id)}, receive, send_with_id)


def _ids(headers: Iterable[Header]) -> Iterator[bytes]:
    return (value for name, value in headers if name.lower() == NAME)


def _with_id(headers: Iterable[Header], request_id: bytes) -> list[Header]:
    return [*(header for header in headers if header[0].lower() != NAME), (NAME, request_id)]

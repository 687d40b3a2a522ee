"""What the router answered, noted on its way out: the truth that a tool's own figures are held against."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy.bench.definitions import Served
from fleet.errors import ReplicaLost


@dataclass
class Answer:
    """One request to a generating endpoint and what came of it."""

    route: str
    asked: dict[str, Any]
    status: int = 0
    usage: Mapping[str, Any] | None = None
    """The last one sent; None where the client did not ask for it."""
    metrics: Mapping[str, Any] | None = None

    @property
    def served(self) -> Served:
        """Raises `ReplicaLost` for an answer that did not come to its end."""
        if self.status != HTTPStatus.OK or self.usage is None or self.metrics is None:
            raise ReplicaLost(f"{self.route} was answered with status {self.status} and no figures of its own")
        return Served.of(self.usage, self.metrics)


@dataclass
class Recorder:
    """An ASGI app around the router that changes nothing."""

    app: ASGIApp
    answers: list[Answer] = field(default_factory=list)
    other_routes: list[tuple[str, int]] = field(default_factory=list)
    """(path, status) of every other request."""
    _open: int = 0
    _is_idle: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        asked, body = bytearray(), bytearray()
        status = 0

        async def heard() -> Message:
            message = await receive()
            asked.extend(message.get("body", b""))
            return message

        async def said(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            body.extend(message.get("body", b""))
            await send(message)

        self._open += 1
        self._is_idle.clear()
        try:
            await self.app(scope, heard, said)
        finally:
            self._note(scope["path"], status, bytes(asked), bytes(body))
            self._open -= 1
            if not self._open:
                self._is_idle.set()

    def _note(self, path: str, status: int, asked: bytes, body: bytes) -> None:
        if not path.endswith("/completions"):
            self.other_routes.append((path, status))
            return
        answer = Answer(path, json.loads(asked), status)
        for part in _objects(body):
            answer.usage = part.get("usage") or answer.usage
            answer.metrics = part.get("metrics") or answer.metrics
        self.answers.append(answer)

    async def finished(self) -> list[Answer]:
        """All answers so far, once none is under way; a client has read the last one before it is noted here."""
        await self._is_idle.wait()
        return self.answers


def _objects(body: bytes) -> list[dict[str, Any]]:
    """The JSON objects of an answer, whether it is one or a stream of events."""
    if not body.startswith(b"data: "):
        return [json.loads(body)] if body else []
    events = [line.removeprefix(b"data: ") for line in body.splitlines() if line.startswith(b"data: ")]
    return [json.loads(event) for event in events if event != b"[DONE]"]

"""How is one streamed chat completion asked for and timed? The client that every load tool shares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from deploy.admin_client import START_HINT
from deploy.bench.answer import Answer
from fleet.clock import Clock
from fleet.errors import ConfigError
from fleet.traffic import Outcome
from router.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class Question:
    """One request: a chat so far and how its next message is to be sampled."""

    messages: tuple[Mapping[str, Any], ...]
    max_tokens: int
    sampling: Mapping[str, Any]
    """Fields of the body, such as temperature and top_p; sent even where they equal a server's default."""
    seed: int
    user: str
    """Sent as `x-session-id`."""

    def body(self, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "messages": list(self.messages),
            "max_tokens": self.max_tokens,
            **self.sampling,
            "seed": self.seed,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }


@dataclass(slots=True)
class Reply:
    """What came back so far; it stays readable when the asking is cancelled in mid-stream."""

    due: float
    """When the request should have begun; latencies count from here, so that a late sender hides nothing."""
    answer: Answer = field(init=False)
    sent: float = field(init=False)
    status: int | None = None
    outcome: Outcome = Outcome.CANCELLED
    is_unreachable: bool = False
    """Not even a connection was made."""

    def __post_init__(self) -> None:
        self.answer = Answer(Stopwatch(self.due))
        self.sent = self.due


class ApiClient:
    """Asks one server, on one path, over an HTTP client that the caller owns."""

    def __init__(self, http: httpx.AsyncClient, clock: Clock, *, model: str, path: str | None, key: str | None) -> None:
        self._http = http
        self._clock = clock
        self._model = model
        self._headers = headers_of(key)
        if path is not None:
            self._headers["x-fleet-path"] = path

    async def ask(self, question: Question, reply: Reply) -> None:
        """Fill the reply in. Every way to fail is an outcome; only cancellation passes through."""
        reply.sent = self._clock.monotonic()
        answer = reply.answer
        try:
            await self._stream(question, reply)
            is_full = reply.status == httpx.codes.TOO_MANY_REQUESTS
            reply.outcome = Outcome.SHED if is_full else answer.outcome()
        except httpx.TimeoutException:
            reply.outcome, answer.error = Outcome.TIMED_OUT, "no answer in time"
        except (httpx.RequestError, ValueError) as error:
            reply.outcome, answer.error = Outcome.FAILED, f"{type(error).__name__}: {error}"
            reply.is_unreachable = isinstance(error, httpx.ConnectError)

    async def _stream(self, question: Question, reply: Reply) -> None:
        headers = {**self._headers, "x-session-id": question.user}
        body = question.body(self._model)
        async with self._http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            reply.status = response.status_code
            if response.status_code != httpx.codes.OK:
                reply.answer.error = message_in((await response.aread()).decode(errors="replace"))
                return
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    reply.answer.feed(line.removeprefix("data: "), self._clock.monotonic())


def message_in(body: str) -> str:
    """What a refusal says: the message of OpenAI's error object, else the body's first 500 characters."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:500]


def open_http(url: str, timeout_seconds: float) -> httpx.AsyncClient:
    """An HTTP client without a limit of its own on open requests."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    timeout = httpx.Timeout(timeout_seconds, connect=10.0)
    # trust_env off: a proxy in between would be measured with the fleet.
    return httpx.AsyncClient(base_url=url, limits=limits, timeout=timeout, trust_env=False)


async def served_model(http: httpx.AsyncClient, key: str | None) -> str:
    """The first model that the server lists. Raises `ConfigError` where it lists none or does not answer."""
    try:
        response = await http.get("/v1/models", headers=headers_of(key))
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except httpx.ConnectError as error:
        raise ConfigError(f"nothing answers at {http.base_url}: {error}; {START_HINT}") from error
    except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"{http.base_url} does not say which model it serves: {error}") from error


def headers_of(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}

"""Bodies in time and in bounds, or refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from fleet.config import RouterConfig
from router import bodies
from router.bodies import BodyReader, understood
from tests.router.served import Router

JSON = {"content-type": "application/json"}


def request_of(parts: Iterable[bytes], headers: Mapping[str, str], pause_seconds: float = 0.0) -> Request:
    """A request whose body comes part by part, with a pause before each, and never ends."""
    coming = iter(parts)

    async def receive() -> Message:
        await asyncio.sleep(pause_seconds)
        part = next(coming, None)
        if part is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": part, "more_body": part != b""}

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw}, receive)


def reader(**settings: float) -> BodyReader:
    return BodyReader(RouterConfig.model_validate(settings))


async def refusal(read: BodyReader, request: Request) -> HTTPException:
    with pytest.raises(HTTPException) as caught:
        await read.json(request)
    return caught.value


async def test_a_body_that_stops_coming_is_a_408_that_closes_the_connection() -> None:
    refused = await refusal(reader(body_timeout_s=0.05), request_of([b"{", b'"a"'], JSON))
    assert refused.status_code == 408
    assert refused.headers == {"connection": "close"}
    assert "4 bytes so far" in refused.detail


async def test_a_body_that_drips_is_cut_off_though_it_never_stops() -> None:
    dripping = request_of([b"x"] * 1000, JSON, pause_seconds=0.01)
    refused = await refusal(reader(body_timeout_s=0.05, body_min_bytes_per_s=10_000), dripping)
    assert refused.status_code == 408


async def test_a_slow_but_steady_upload_outlasts_the_timeout() -> None:
    steady = request_of([*[b"x" * 100] * 30, b""], JSON, pause_seconds=0.01)
    began = asyncio.get_running_loop().time()
    body = await reader(body_timeout_s=0.2, body_min_bytes_per_s=100).json(steady)
    assert len(body) == 3000
    assert asyncio.get_running_loop().time() - began > 0.2


async def test_a_body_too_long_is_refused_before_it_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_BODY_BYTES", 10)
    refused = await refusal(reader(), request_of([b"x" * 6, b"x" * 6], JSON))
    assert refused.status_code == 413


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/json"},
        {"content-type": "application/jsonp"},
        {"content-type": "application/json-patch+json"},
        JSON | {"content-encoding": "gzip"},
        JSON | {"content-encoding": "br, gzip"},
    ],
)
async def test_what_is_no_plain_json_is_a_415(headers: Mapping[str, str]) -> None:
    refused = await refusal(reader(), request_of([b"{}", b""], headers))
    assert refused.status_code == 415


@pytest.mark.parametrize(
    "headers",
    [JSON, {"content-type": "Application/JSON ; charset=utf-8"}, JSON | {"content-encoding": "identity"}],
)
async def test_plain_json_is_read_however_it_is_spelled(headers: Mapping[str, str]) -> None:
    assert await reader().json(request_of([b"{}", b""], headers)) == b"{}"


async def test_a_long_body_is_understood_beside_the_event_loop_and_a_short_one_in_it() -> None:
    def where(raw: bytes) -> int:
        return threading.get_ident()

    assert await understood(b"x", where) == threading.get_ident()
    assert await understood(b"x" * bodies.LONG_BODY_BYTES, where) != threading.get_ident()


async def test_the_router_answers_a_slow_body_in_openais_shape(make_router: Callable[..., Router]) -> None:
    async def forever() -> object:
        yield b"{"
        await asyncio.Event().wait()

    async with make_router(body_timeout_s=0.05).http() as http:
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
            answer = await http.post(path, content=forever(), headers=JSON)  # type: ignore[arg-type]
            assert answer.status_code == 408
            assert answer.json()["error"]["type"] == "invalid_request_error"

"""Clients that leave or dawdle, seen through HAProxy as Serve configures it for the fleet."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

from fleet.errors import Unavailable
from router.answers import error_body
from tests.fakes import Fault
from tests.router.haproxy import haproxy
from tests.router.served import Router

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
PATIENCE_SECONDS = 30.0
SIZES = (1_000, 17_000, 40_000, 200_000)
"""Bytes of bodies: HAProxy's buffer holds 16 KB."""


@asynccontextmanager
async def served(router: Router) -> AsyncIterator[int]:
    """The port of a real server with the router, and what Serve's replicas answer to HAProxy's health checks."""
    app = Starlette(routes=[Route("/-/healthz", lambda request: Response("success")), Mount("/", router.app)])
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for this
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await serving


def head(length: str, path: str = "/v1/completions") -> bytes:
    lines = (f"POST {path} HTTP/1.1", "host: router", "content-type: application/json", length)
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def plain(body: bytes) -> bytes:
    return head(f"content-length: {len(body)}") + body


def chunked(body: bytes) -> bytes:
    parts = (body[start : start + 5000] for start in range(0, len(body), 5000))
    return head("transfer-encoding: chunked") + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"


async def until(holds: Callable[[], bool]) -> bool:
    """Whether something comes to hold while one can still wait for it."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():  # noqa: ASYNC110 - neither sockets nor the fake have an event for this
                await asyncio.sleep(0.01)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("tokens_before", [0, 2])
async def test_whoever_leaves_is_cancelled_whatever_was_sent_and_however(
    make_router: Callable[..., Router], tmp_path: Path, tokens_before: int
) -> None:
    router = make_router()
    router.backend.faults["baseline"] = Fault(tokens_before)
    async with served(router) as back, haproxy(tmp_path, back) as front:
        for size, framing, is_streamed in itertools.product(SIZES, (plain, chunked), (False, True)):
            request = {"prompt": "x", "max_tokens": 9, "stream": is_streamed, "padding": "x" * size}
            _, writer = await asyncio.open_connection("127.0.0.1", front)
            writer.write(framing(json.dumps(request).encode()))
            case = (size, framing.__name__, is_streamed)
            assert await until(lambda: len(router.backend.open) == 1), f"{case} never started"
            writer.close()
            assert await until(lambda: not router.backend.open), f"{case} runs on without its client"


BRISK = {"http-request 30s": "http-request 1s", "120": "1"}
"""HAProxy's two limits on clients, cut to a second."""


async def test_headers_and_bodies_that_never_end_are_answered_with_408_and_hung_up_on(
    make_router: Callable[..., Router], tmp_path: Path
) -> None:
    async with served(make_router(body_timeout_s=0.5)) as back, haproxy(tmp_path, back, BRISK) as front:
        for beginning in (b"POST /v1/completions HTTP/1.1\r\nhost:", head("content-length: 90000") + b"{"):
            reader, writer = await asyncio.open_connection("127.0.0.1", front)
            writer.write(beginning)
            async with asyncio.timeout(PATIENCE_SECONDS):
                answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 408 ")
            writer.close()


async def test_where_no_router_is_left_the_proxy_answers_as_openai_would(
    make_router: Callable[..., Router], tmp_path: Path
) -> None:
    async with AsyncExitStack() as routers:
        back = await routers.enter_async_context(served(make_router()))
        async with haproxy(tmp_path, back) as front, httpx.AsyncClient() as http:
            await routers.aclose()
            answer = await http.post(f"http://127.0.0.1:{front}/v1/completions", json={"prompt": "x"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == error_body(Unavailable("no router is ready; try again"))


@pytest.mark.parametrize("size", [10, 40_000])
async def test_a_client_that_waits_for_its_tokens_is_not_idle(
    make_router: Callable[..., Router], tmp_path: Path, size: int
) -> None:
    router = make_router()
    router.backend.faults["baseline"] = Fault(1)
    async with served(router) as back, haproxy(tmp_path, back, BRISK) as front:
        reader, writer = await asyncio.open_connection("127.0.0.1", front)
        writer.write(plain(json.dumps({"prompt": "x", "stream": True, "padding": "x" * size}).encode()))
        assert await until(lambda: len(router.backend.open) == 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await reader.read()
        assert router.backend.open
        writer.close()

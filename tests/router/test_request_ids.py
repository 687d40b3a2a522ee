"""One id per request, the client's own where it can be used."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from router.request_ids import RequestIds
from tests.router.served import Router

Headers = list[tuple[bytes, bytes]]


async def ask(app: ASGIApp, headers: Headers, path: str = "/") -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://router") as http:
        return await http.get(path, headers=headers)


def echo(own: str | None = None) -> Starlette:
    """An app that shows the ids it was asked with, and may answer with one of its own."""

    async def show(request: Request) -> PlainTextResponse:
        seen = ",".join(request.headers.getlist("x-request-id"))
        return PlainTextResponse(seen, headers={"X-Request-ID": own} if own else None)

    return Starlette(routes=[Route("/", show)])


async def test_a_clients_usable_id_is_seen_and_comes_back_once() -> None:
    answer = await ask(RequestIds(RequestIds(echo())), [(b"X-Request-Id", b"mine")])
    assert answer.text == "mine"
    assert answer.headers.get_list("x-request-id") == ["mine"]


@pytest.mark.parametrize("given", [b"", b"a b", b"\xff\xfe", "größe".encode(), b"x" * 129, b"a\x7f"])
async def test_an_unusable_id_is_replaced(given: bytes) -> None:
    answer = await ask(RequestIds(echo()), [(b"x-request-id", given)])
    assert len(answer.text) == 32
    assert answer.headers.get_list("x-request-id") == [answer.text]


async def test_of_several_ids_the_first_usable_one_counts() -> None:
    answer = await ask(
        RequestIds(echo()), [(b"x-request-id", b"\xff"), (b"x-request-id", b"b"), (b"x-request-id", b"c")]
    )
    assert answer.text == "b"


async def test_an_id_that_the_app_answers_with_has_precedence() -> None:
    answer = await ask(RequestIds(echo(own="from-the-body")), [(b"x-request-id", b"mine")])
    assert answer.headers.get_list("x-request-id") == ["from-the-body"]


@given(
    ids=st.lists(st.binary(max_size=140).filter(lambda value: b"\n" not in value and b"\r" not in value), max_size=3)
)
async def test_whatever_bytes_come_every_answer_has_one_valid_id(ids: list[bytes]) -> None:
    answer = await ask(RequestIds(echo()), [(b"x-request-id", value) for value in ids])
    (returned,) = answer.headers.get_list("x-request-id")
    assert 1 <= len(returned) <= 128
    assert returned.isascii()
    assert returned == answer.text


async def test_every_answer_of_the_router_names_its_request(make_router: Callable[..., Router]) -> None:
    router = make_router()
    async with router.http(headers={"x-request-id": "mine"}) as http:
        for method, path in (("GET", "/v1/models"), ("GET", "/nowhere"), ("PUT", "/v1/models"), ("POST", "/tokenize")):
            answer = await http.request(method, path)
            assert answer.headers.get_list("x-request-id") == ["mine"], path
        body = {"prompt": "x", "max_tokens": 1, "request_id": "in-the-body"}
        answer = await http.post("/v1/completions", json=body)
        assert answer.headers.get_list("x-request-id") == ["in-the-body"]

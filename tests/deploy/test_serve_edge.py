"""Headers as they leave the edge: readable by Serve, and free of orders to it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from deploy.serve_edge import STEERING, middlewares

names = st.sampled_from(
    [b"x-request-id", b"x-session-id", b"authorization", b"traceparent", b"X-Request-Timeout-Seconds", *STEERING]
)


async def seen_by_serve(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers behind the edge."""
    seen: list[tuple[bytes, bytes]] = []

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend(scope["headers"])

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        pass

    app = serve
    for middleware in middlewares():
        app = middleware.cls(app, *middleware.args, **middleware.kwargs)  # type: ignore[assignment]
    await app({"type": "http", "headers": headers}, receive, send)
    return seen


@given(headers=st.lists(st.tuples(names, st.binary(max_size=20))))
async def test_serve_can_decode_every_header_and_obeys_none(headers: list[tuple[bytes, bytes]]) -> None:
    seen = await seen_by_serve(headers)
    for name, value in seen:
        name.decode("utf-8")
        value.decode("utf-8")
    assert not STEERING & {name.lower() for name, _ in seen}
    assert [name for name, _ in seen].count(b"x-request-id") == 1


async def test_an_id_that_serve_cannot_read_is_replaced_and_not_rewritten() -> None:
    ((_, request_id),) = await seen_by_serve([(b"x-request-id", b"\xff")])
    assert len(request_id) == 32


async def test_readable_values_stay_and_unreadable_ones_stay_apart() -> None:
    headers = [(b"x-session-id", value) for value in (b"plain", "größe".encode(), b"\xff", b"\xfe")]
    values = [value for name, value in await seen_by_serve(headers) if name == b"x-session-id"]
    assert values[:2] == [b"plain", "größe".encode()]
    assert values[2:] == [b"\\xff", b"\\xfe"]

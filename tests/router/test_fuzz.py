"""Whatever a client sends: an answer or a refusal in OpenAI's shape, no failure of ours, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.openai_schema import _UNSUPPORTED, ChatBody, CompletionBody
from tests.router.served import Router

PATIENCE_SECONDS = 60.0
FEW, MANY = 50, 150

garbage = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["\ud800", "\x00", "x" * 2000, 1e308, -0.0, 5e-324]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
text = st.text(max_size=20) | st.just("<|im_end|>")
message = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "developer", "user", "assistant"]),
        "content": text | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": text}), max_size=2),
    }
)
token_ids = st.lists(st.integers(0, 400), max_size=4)
meant: dict[str, st.SearchStrategy[Any]] = {
    "best_of": st.integers(1, 3),
    "continue_final_message": st.booleans(),
    "add_generation_prompt": st.booleans(),
    "echo": st.booleans(),
    "frequency_penalty": st.floats(-2, 2),
    "ignore_eos": st.booleans(),
    "logit_bias": st.dictionaries(st.sampled_from(["0", "1", "01", "383", "384", "-1"]), st.floats(-100, 100)),
    "logprobs": st.booleans() | st.integers(0, 20),
    "max_completion_tokens": st.integers(1, 3),
    "max_tokens": st.integers(1, 3),
    "min_p": st.floats(0, 1),
    "min_tokens": st.integers(0, 3),
    "model": st.just("tiny"),
    "n": st.integers(1, 3),
    "presence_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.01, 10),
    "request_id": st.text("abc!~", min_size=1, max_size=10),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "speculation": st.fixed_dictionaries({"num_speculative_tokens": st.integers(0, 32)}),
    "stop": text | st.lists(text, max_size=3),
    "stop_token_ids": token_ids,
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "temperature": st.floats(0, 2),
    "top_k": st.integers(-1, 50),
    "top_logprobs": st.integers(0, 20),
    "top_p": st.floats(0, 1, exclude_min=True),
    "user": text,
}
named = sorted(
    {*ChatBody.model_fields, *CompletionBody.model_fields, *_UNSUPPORTED} - {"messages", "prompt", "max_tokens"}
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """An endpoint and a body, mostly sensible, with up to two fields that are anything at all."""
    path = draw(st.sampled_from(["/v1/chat/completions", "/v1/completions", "/tokenize"]))
    prompt = text | token_ids | st.lists(text, max_size=2) | st.lists(token_ids, max_size=2)
    body: dict[str, Any] = {"max_tokens": draw(meant["max_tokens"])}
    if path == "/v1/chat/completions":
        body["messages"] = draw(st.lists(message, max_size=3))
    else:
        body["prompt"] = draw(prompt)
    for field in draw(st.lists(st.sampled_from(sorted(meant)), max_size=5)):
        body[field] = draw(meant[field])
    for field in draw(st.lists(st.sampled_from([*named, "unheard_of"]), max_size=2)):
        body[field] = draw(garbage)
    return path, body


header_bytes = st.binary(max_size=12).filter(lambda value: not set(value) & set(b"\r\n\0"))
headers = st.dictionaries(
    st.sampled_from(["x-request-id", "x-session-id", "x-fleet-path", "authorization", "accept", "cookie"]),
    header_bytes | st.sampled_from([b"baseline", b"speculative", b"Bearer x"]),
    max_size=3,
)


def ask(make_router: Callable[..., Router], method: str, url: str, **options: Any) -> httpx.Response:
    """One request to a fresh router, which must come back to rest."""

    async def once() -> httpx.Response:
        router = make_router()
        async with router.http() as http, asyncio.timeout(PATIENCE_SECONDS):
            answer = await http.request(method, url, **options)
        assert not router.backend.open
        assert sum(router.dispatcher.ledger.in_flight.values()) == router.dispatcher.queued == 0
        return answer

    return asyncio.run(once())


def assert_refused_well(answer: httpx.Response) -> None:
    assert 400 <= answer.status_code < 500, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert isinstance(answer.json()["error"]["message"], str)


def assert_answered_or_refused(
    make_router: Callable[..., Router], request: tuple[str, dict[str, Any]], headers: dict[str, bytes]
) -> None:
    path, body = request
    sent = [(name.encode(), value) for name, value in headers.items()]
    content = json.dumps(body).encode()
    answer = ask(make_router, "POST", path, content=content, headers=[*sent, (b"content-type", b"application/json")])
    if answer.status_code != 200:
        assert_refused_well(answer)
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.text.endswith("data: [DONE]\n\n")
    else:
        assert "error" not in answer.json()


@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_every_body_is_answered_or_refused(make_router: Callable[..., Router], examples: int) -> None:
    @settings(max_examples=examples)
    @given(request=requests(), headers=headers)
    def of_any(request: tuple[str, dict[str, Any]], headers: dict[str, bytes]) -> None:
        assert_answered_or_refused(make_router, request, headers)

    of_any()


@settings(max_examples=50)
@given(
    method=st.sampled_from(["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW"]),
    path=st.text(max_size=10) | st.sampled_from(["v1/chat/completions", "v1/models/x", "health/", "tokenize"]),
    content_type=st.sampled_from([None, "", "application/json", "text/plain", "multipart/form-data; boundary=x"]),
)
def test_every_method_on_every_path_is_answered_or_refused(
    make_router: Callable[..., Router], method: str, path: str, content_type: str | None
) -> None:
    sent = {} if content_type is None else {"content-type": content_type}
    answer = ask(make_router, method, f"/{quote(path)}", headers=sent)
    if answer.status_code >= 400 and method != "HEAD":
        assert_refused_well(answer)

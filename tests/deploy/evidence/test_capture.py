import json
import random
import stat
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.evidence.capture.observed import Observed
from deploy.evidence.capture.relay import Relay
from deploy.evidence.capture.reservoir import CapturedRequest, Reservoirs
from deploy.evidence.capture.scrub import scrub, scrub_text
from deploy.evidence.capture.sealed import write_slice
from deploy.evidence.samples import load_samples
from deploy.evidence.traces import load_trace
from fleet.errors import ConfigError
from tests.fakes import ManualClock

KEY = "0123456789abcdefghij"


def captured(number: int, category: str = "short") -> CapturedRequest:
    messages = [{"role": "user", "content": f"question {number}"}]
    return CapturedRequest(f"r{number}", category, messages, 16, {"temperature": 0.5}, True, 1.5, 5, 7)


# --- scrubbing


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("write to jane.doe+x@mail.example.org, please", "write to <mail>, please"),
        ("call +49 (0)30 1234-5678 now", "call <number> now"),
        ("card 4111 1111 1111 1111.", "card <number>."),
        ("the key is sk-proj-abcDEF123456789012345", "the key is <key>"),
        ("curl -H 'Authorization: Bearer abc.def-123456'", "curl -H 'Authorization: <key>'"),
        ("AKIAIOSFODNN7EXAMPLE", "<key>"),
        ("password: hunter22, user: bob", "password: <key>, user: bob"),
        ('{"api_key": "xyz987654"}', '{"api_key": <key>"}'),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefgh", "<key>"),
        ("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", "<key>"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- ok", "<key> ok"),
    ],
)
def test_keys_mails_and_numbers_are_replaced(text: str, kept: str) -> None:
    assert scrub_text(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        "In 2024 we sold 3,500 units at 19.99 each.",
        "def add(a, b): return a + b  # O(1), 100 %",
        "The token limit of the model is 4096.",
        "What is 123456 divided by 7?",
        "internationalization_of_everything_everywhere",
    ],
)
def test_ordinary_text_and_code_stay_as_they_are(text: str) -> None:
    assert scrub_text(text) == text


def test_every_text_inside_a_message_is_scrubbed() -> None:
    parts = [{"type": "text", "text": "mail a@b.io"}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert scrub([{"role": "user", "content": parts, "n": 3}])[0] == {
        "role": "user",
        "content": [{"type": "text", "text": "mail <mail>"}, parts[1]],
        "n": 3,
    }


# --- sampling


def test_a_reservoir_keeps_every_request_with_the_same_chance_and_never_more_than_its_size() -> None:
    kept: Counter[str] = Counter()
    for seed in range(600):
        reservoirs = Reservoirs(4, random.Random(seed))
        for number in range(20):
            reservoirs.offer(captured(number))
        assert len(list(reservoirs.requests())) == 4
        kept.update(request.id for request in reservoirs.requests())
    # Each is expected 120 times; its standard deviation is below 10.
    assert all(80 < kept[f"r{number}"] < 160 for number in range(20))


def test_a_rare_bucket_is_not_crowded_out_by_a_frequent_one() -> None:
    reservoirs = Reservoirs(3, random.Random(0))
    for number in range(1000):
        reservoirs.offer(captured(number, "frequent"))
    reservoirs.offer(captured(0, "rare"))
    assert {bucket: len(kept) for bucket, kept in reservoirs.kept.items()} == {"frequent": 3, "rare": 1}
    assert reservoirs.seen == {"frequent": 1000, "rare": 1}
    assert [(item.category, item.weight) for item in reservoirs.requests()] == [
        *[("frequent", pytest.approx(1000 / 3))] * 3,
        ("rare", 1.0),
    ]


# --- the file


@pytest.mark.parametrize("key", [None, KEY])
def test_a_slice_is_read_again_by_the_matrix_and_by_its_owner_alone(tmp_path: Path, key: str | None) -> None:
    path = tmp_path / "slice.jsonl"
    write_slice(path, [replace(captured(1), weight=2.5), replace(captured(2), sampling={"temperature": 0})], key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (b"question" in path.read_bytes()) == (key is None)
    samples = load_samples(path, key)
    assert [item.messages[0]["content"] for item in samples.items] == ["question 1", "question 2"]
    assert samples.items[0].max_tokens == 16
    assert [(item.weight, item.is_greedy) for item in samples.items] == [(2.5, False), (1.0, True)]


@pytest.mark.parametrize("key", [None, KEY])
def test_a_slice_that_holds_all_that_came_lends_its_arrivals(tmp_path: Path, key: str | None) -> None:
    path = tmp_path / "slice.jsonl"
    came = [replace(captured(number), arrived_seconds=at) for number, at in enumerate((7.5, 2.0, 3.25))]
    write_slice(path, came, key)
    trace = load_trace(path, key)
    assert trace.arrivals == (0.0, 1.25, 5.5)
    assert [(row.prompt_tokens, row.output_tokens) for row in trace.rows] == [(5, 7)] * 3


def test_a_slice_of_which_some_were_left_out_lends_no_arrivals(tmp_path: Path) -> None:
    path = tmp_path / "slice.jsonl"
    write_slice(path, [captured(1), replace(captured(2), weight=2.5)], None)
    with pytest.raises(ConfigError, match=r":2: .*stands for 2.5 requests.*larger --per-bucket"):
        load_trace(path)


def test_an_encrypted_slice_needs_its_key_and_has_to_be_whole(tmp_path: Path) -> None:
    path = tmp_path / "slice.jsonl"
    write_slice(path, [captured(1)], KEY)
    with pytest.raises(ConfigError, match="is encrypted"):
        load_samples(path)
    with pytest.raises(ConfigError, match="is encrypted"):
        load_trace(path)
    with pytest.raises(ConfigError, match="does not open"):
        load_samples(path, "another key of some length")
    path.write_bytes(path.read_bytes()[:-4] + b"AAAA")
    with pytest.raises(ConfigError, match="was changed"):
        load_samples(path, KEY)
    with pytest.raises(ConfigError, match="too short"):
        write_slice(path, [], "short")


# --- what passes by

ASKED = {
    "model": "m",
    "messages": [{"role": "user", "content": "mail me at a@b.io"}],
    "temperature": 0,
    "max_tokens": 9,
    "stream": True,
}
EVENTS = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"one"}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":" two"},"finish_reason":"stop"}]}\n\n'
)
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":300,"completion_tokens":40}}\n\n'
DONE = b"data: [DONE]\n\n"


def observe(answer: bytes, asked: Any = ASKED, size: int = 7) -> CapturedRequest | None:
    observed = Observed(json.dumps(asked).encode() if not isinstance(asked, bytes) else asked, 2.0)
    for start in range(0, len(answer), size):
        observed.feed(answer[start : start + size])
    return observed.request("id")


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_stream_is_read_however_it_is_cut(size: int) -> None:
    request = observe(EVENTS + USAGE + DONE, size=size)
    assert request is not None
    assert request.messages == [{"role": "user", "content": "mail me at <mail>"}]
    assert request.category == "prompt ≤1024, output ≤128, greedy"
    assert (request.max_tokens, request.sampling, request.stream) == (9, {"temperature": 0}, True)
    assert (request.prompt_tokens, request.output_tokens, request.arrived_seconds) == (300, 40, 2.0)


def test_without_usage_the_lengths_are_estimated() -> None:
    request = observe(EVENTS + DONE)
    assert request is not None
    assert request.output_tokens == 2
    assert request.prompt_tokens == len(json.dumps(ASKED["messages"])) // 4


def test_an_answer_in_one_piece_is_read_too() -> None:
    body = {
        "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    request = observe(json.dumps(body).encode(), {**ASKED, "stream": False, "temperature": None})
    assert request is not None
    assert request.category == "prompt ≤256, output ≤32, sampled"


@pytest.mark.parametrize(
    "asked", [b"not json", {"messages": []}, {"messages": "x"}, {**ASKED, "messages": [{"content": "x" * 300_000}]}]
)
def test_what_is_no_chat_or_too_long_is_not_kept(asked: Any) -> None:
    assert observe(EVENTS + DONE, asked) is None


def test_an_answer_that_broke_off_is_not_kept() -> None:
    assert observe(EVENTS[:90]) is None


class Pieces(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in (EVENTS, USAGE, DONE):
            yield piece


def upstream(request: httpx.Request) -> httpx.Response:
    if request.headers.get("authorization") != "Bearer k":
        return httpx.Response(401, stream=Pieces())
    return httpx.Response(200, headers={"content-type": "text/event-stream", "x-request-id": "7"}, stream=Pieces())


async def test_the_relay_changes_nothing_and_keeps_what_passed() -> None:
    reservoirs = Reservoirs(5, random.Random(0))
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return upstream(request)

    inner = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://fleet")
    relay = Relay(inner, reservoirs, ManualClock()).app()
    async with inner, httpx.AsyncClient(transport=httpx.ASGITransport(relay), base_url="http://relay") as client:
        headers = {"authorization": "Bearer k", "x-session-id": "s"}
        good = await client.post("/v1/chat/completions", json=ASKED, headers=headers)
        private = await client.post("/v1/chat/completions", json=ASKED, headers={**headers, "x-fleet-capture": "off"})
        refused = await client.post("/v1/chat/completions", json=ASKED)
        await client.get("/v1/models?limit=2", headers=headers)
    assert good.content == private.content == EVENTS + USAGE + DONE
    assert good.headers["x-request-id"] == "7"
    assert refused.status_code == 401
    assert json.loads(asked[0].content) == ASKED
    assert asked[0].headers["x-session-id"] == "s"
    assert asked[0].url.host == "fleet"
    assert str(asked[3].url) == "http://fleet/v1/models?limit=2"
    assert [request.messages[0]["content"] for request in reservoirs.requests()] == ["mail me at <mail>"]


async def test_an_upstream_that_is_away_is_a_502() -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    inner = httpx.AsyncClient(transport=httpx.MockTransport(away), base_url="http://fleet")
    relay = Relay(inner, Reservoirs(5, random.Random(0)), ManualClock()).app()
    async with inner, httpx.AsyncClient(transport=httpx.ASGITransport(relay), base_url="http://relay") as client:
        response = await client.post("/v1/chat/completions", json=ASKED)
    assert response.status_code == 502
    assert "does not answer" in response.json()["error"]["message"]

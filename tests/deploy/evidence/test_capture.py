import json
import random
import stat
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.evidence.capture import observed, serve
from deploy.evidence.capture.observed import DEEPEST, Observed
from deploy.evidence.capture.relay import Relay
from deploy.evidence.capture.reservoir import CapturedRequest, LeftOut, Reservoirs
from deploy.evidence.capture.sealed import write_slice
from deploy.evidence.samples import load_samples
from deploy.evidence.traces import load_trace
from fleet.errors import ConfigError
from tests.fakes import ManualClock

KEY = "0123456789abcdefghij"


def captured(number: int, category: str = "short") -> CapturedRequest:
    messages = [{"role": "user", "content": f"question {number}"}]
    return CapturedRequest(f"r{number}", category, messages, 16, {"temperature": 0.5}, True, 1.5, 5, 7)


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


sizes = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2000)), max_size=60)


@given(sizes, st.integers(1, 20), st.integers(0, 20_000))
def test_what_is_kept_never_takes_more_bytes_than_it_may(
    came: list[tuple[str, int]], per_bucket: int, max_bytes: int
) -> None:
    reservoirs = Reservoirs(per_bucket, random.Random(0), max_bytes)
    for number, (name, size) in enumerate(came):
        reservoirs.offer(replace(captured(number, name), messages=[{"content": "x" * size}]))
        kept = [request for bucket in reservoirs.kept.values() for request in bucket]
        assert sum(len(request.line()) for request in kept) <= max_bytes
        assert all(len(bucket) <= per_bucket for bucket in reservoirs.kept.values())
    seen = sum(reservoirs.seen.values())
    assert seen == len(came)
    if all(reservoirs.kept.values()):
        assert sum(request.weight for request in reservoirs.requests()) == pytest.approx(seen)


def test_where_bytes_are_scarce_long_and_short_requests_are_as_likely_to_be_kept() -> None:
    kept: Counter[str] = Counter()
    lines = [replace(captured(number), messages=[{"content": "x" * (number % 2) * 2000}]) for number in range(20)]
    for seed in range(300):
        reservoirs = Reservoirs(10, random.Random(seed), 4 * len(lines[1].line()) + 50)
        for line in lines:
            reservoirs.offer(line)
        assert len(list(reservoirs.requests())) == 4
        kept.update(request.id for request in reservoirs.requests())
    assert all(30 < kept[f"r{number}"] < 90 for number in range(20))


def test_ends_of_lines_that_json_keeps_do_not_break_the_file(tmp_path: Path) -> None:
    path = tmp_path / "slice.jsonl"
    content = "one\u2028two\x85three\u2029"
    write_slice(path, [replace(captured(n), messages=[{"role": "user", "content": content}]) for n in (1, 2)], None)
    assert [item.messages[0]["content"] for item in load_samples(path).items] == [content, content]
    assert len(load_trace(path).rows) == 2


def test_half_a_surrogate_pair_is_written_as_a_question_mark(tmp_path: Path) -> None:
    path = tmp_path / "slice.jsonl"
    write_slice(path, [replace(captured(1), messages=[{"role": "user", "content": "a\ud800é"}])], None)
    assert load_samples(path).items[0].messages[0]["content"] == "a?é"


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


def observe(answer: bytes, asked: Any = ASKED, size: int = 7) -> CapturedRequest | LeftOut:
    seen = Observed(json.dumps(asked).encode() if not isinstance(asked, bytes) else asked, 2.0)
    for start in range(0, len(answer), size):
        seen.feed(answer[start : start + size])
    return seen.request("id")


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_stream_is_read_however_it_is_cut(size: int) -> None:
    request = observe(EVENTS + USAGE + DONE, size=size)
    assert isinstance(request, CapturedRequest)
    assert request.messages == [{"role": "user", "content": "mail me at <mail>"}]
    assert request.category == "prompt ≤1024, output ≤128, greedy"
    assert (request.max_tokens, request.sampling, request.stream) == (9, {"temperature": 0}, True)
    assert (request.prompt_tokens, request.output_tokens, request.arrived_seconds) == (300, 40, 2.0)


def test_without_usage_the_lengths_are_estimated() -> None:
    request = observe(EVENTS + DONE)
    assert isinstance(request, CapturedRequest)
    assert request.output_tokens == 2
    assert request.prompt_tokens == len(json.dumps(ASKED["messages"])) // 4


def test_an_answer_in_one_piece_is_read_too() -> None:
    body = {
        "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    request = observe(json.dumps(body).encode(), {**ASKED, "stream": False, "temperature": None})
    assert isinstance(request, CapturedRequest)
    assert request.category == "prompt ≤256, output ≤32, sampled"


def nested(levels: int) -> bytes:
    return b'{"messages": [{"content": ' + b"[" * levels + b"]" * levels + b"}]}"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (b"not json", LeftOut.NO_CHAT),
        ({"messages": []}, LeftOut.NO_CHAT),
        ({"messages": "x"}, LeftOut.NO_CHAT),
        (nested(DEEPEST), LeftOut.NO_CHAT),
        (nested(100_000), LeftOut.NO_CHAT),
        ({**ASKED, "messages": [{"content": "x" * 300_000}]}, LeftOut.TOO_LONG),
    ],
)
def test_what_is_no_chat_or_too_long_is_not_kept(asked: Any, reason: LeftOut) -> None:
    assert observe(EVENTS + DONE, asked, size=10_000) is reason


def test_a_chat_that_is_nested_as_chats_may_be_is_kept() -> None:
    assert isinstance(observe(EVENTS + DONE, nested(DEEPEST - 2)), CapturedRequest)


def test_an_answer_that_broke_off_is_not_kept() -> None:
    assert observe(EVENTS[:90]) is LeftOut.UNFINISHED


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["choices", "delta", "message", "content", "usage", "prompt_tokens", "finish_reason"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=15,
)


@given(st.one_of(st.binary(max_size=40), json_values.map(lambda value: json.dumps(value).encode())), st.binary())
def test_whatever_a_server_answers_is_read_without_an_error(line: bytes, rest: bytes) -> None:
    assert isinstance(observe(b"data: " + line + b"\n" + rest, size=16), (CapturedRequest, LeftOut))


async def test_scrubbing_runs_beside_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def slow(messages: Any) -> Any:
        threads.append(threading.current_thread())
        return messages

    monkeypatch.setattr(observed, "scrub", slow)
    inner = httpx.AsyncClient(transport=httpx.MockTransport(upstream), base_url="http://fleet")
    relay = Relay(inner, Reservoirs(5, random.Random(0)), ManualClock()).app()
    async with inner, httpx.AsyncClient(transport=httpx.ASGITransport(relay), base_url="http://relay") as client:
        await client.post("/v1/chat/completions", json=ASKED, headers={"authorization": "Bearer k"})
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


def test_the_file_is_written_beside_the_streams_while_they_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    threads: list[threading.Thread] = []
    troubles: list[str] = []

    def write(path: Path, requests: Iterable[CapturedRequest], key: str | None) -> None:
        threads.append(threading.current_thread())
        if len(threads) == 2:
            raise ConfigError("the disk is full")
        write_slice(path, requests, key)

    monkeypatch.setattr(serve, "write_slice", write)
    file = tmp_path / "slice.jsonl"
    plan = serve.CapturePlan("http://127.0.0.1:9", "127.0.0.1", 0, 5, 2**24, 0.05, file, KEY)
    serve.capture(plan, on_start=lambda: None, on_trouble=troubles.append)
    first, *between, last = (thread is threading.current_thread() for thread in threads)
    assert (first, last, any(between), len(between) > 0) == (True, True, False, True)
    assert troubles == ["the disk is full"], "which ends nothing"
    assert file.read_bytes().startswith(b"fleet-capture-1 ")


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
        text = await client.post("/v1/completions", json={"prompt": "x"}, headers=headers)
    assert good.content == private.content == text.content == EVENTS + USAGE + DONE
    assert good.headers["x-request-id"] == "7"
    assert refused.status_code == 401
    assert json.loads(asked[0].content) == ASKED
    assert asked[0].headers["x-session-id"] == "s"
    assert asked[0].url.host == "fleet"
    assert str(asked[3].url) == "http://fleet/v1/models?limit=2"
    assert [request.messages[0]["content"] for request in reservoirs.requests()] == ["mail me at <mail>"]
    assert reservoirs.left_out == {LeftOut.UNWILLING: 1, LeftOut.UNFINISHED: 1, LeftOut.COMPLETION: 1}


async def test_an_upstream_that_is_away_is_a_502() -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    inner = httpx.AsyncClient(transport=httpx.MockTransport(away), base_url="http://fleet")
    relay = Relay(inner, Reservoirs(5, random.Random(0)), ManualClock()).app()
    async with inner, httpx.AsyncClient(transport=httpx.ASGITransport(relay), base_url="http://relay") as client:
        response = await client.post("/v1/chat/completions", json=ASKED)
    assert response.status_code == 502
    assert "does not answer" in response.json()["error"]["message"]

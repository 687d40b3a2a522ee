"""The HTTP surface, by the unmodified OpenAI client and by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Scope

from fleet.errors import ReplicaLost
from fleet.tokenizer import Tokenizer
from tests.fakes import Fault, expected_text, fake_token
from tests.router.served import Router
from tests.tiny import CHAT_TEMPLATE

MakeRouter = Callable[..., Router]
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
SCOPE: Scope = {
    "type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"", "root_path": "",
    "headers": [(b"content-type", b"application/json")], "http_version": "1.1", "scheme": "http",
}  # fmt: skip


@pytest.mark.parametrize("path", ["baseline", "speculative"])
async def test_the_openai_client_chats_on_either_path(make_router: MakeRouter, path: str) -> None:
    router = make_router()
    router.backend.bursts["speculative"] = 3
    async with router.openai() as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=7, seed=11, extra_headers={"x-fleet-path": path}
        )
    assert answer.choices[0].message.content == expected_text(11, 0, 7)
    assert answer.choices[0].finish_reason == "length"
    assert answer.object == "chat.completion"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7
    assert answer.model_extra is not None
    assert answer.model_extra["metrics"]["fleet"]["path"] == path


@pytest.mark.parametrize("burst", [1, 3])
async def test_the_openai_client_reads_a_streamed_chat(make_router: MakeRouter, burst: int) -> None:
    router = make_router()
    router.route(100)
    router.backend.bursts["speculative"] = burst
    async with router.openai() as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=7, seed=11, stream=True, stream_options={"include_usage": True}
        )
        events = [event async for event in stream]
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == expected_text(11, 0, 7)
    assert events[0].choices[0].delta.role == "assistant"
    assert len(events) == 1 + -(-7 // burst) + 1, "the role, one event per engine step, the usage"
    assert events[-2].choices[0].finish_reason == "length"
    assert events[-1].usage is not None
    assert events[-1].usage.total_tokens == events[-1].usage.prompt_tokens + 7
    assert len({event.id for event in events}) == 1


async def test_the_openai_client_gets_n_choices_streamed_and_not(make_router: MakeRouter) -> None:
    router = make_router()
    async with router.openai() as client:
        whole = await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5, seed=3, n=3)
        stream = await client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=5, seed=3, n=3, stream=True
        )
        texts = ["", "", ""]
        async for event in stream:
            texts[event.choices[0].index] += event.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices] == [expected_text(3, i, 5) for i in range(3)]


async def test_the_openai_client_completes_several_prompts_with_logprobs_and_echo(
    make_router: MakeRouter, tokenizer: Tokenizer
) -> None:
    router = make_router()
    async with router.openai() as client:
        answer = await client.completions.create(
            model="tiny", prompt=[[70, 71], [72]], max_tokens=1, seed=4, logprobs=1, echo=True, temperature=0
        )
    assert [choice.index for choice in answer.choices] == [0, 1]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == [tokenizer.token_text(token) for token in (70, 71, fake_token(4, 0, 0))]
    assert logprobs.token_logprobs == [None, -0.5, -0.5]
    assert answer.choices[1].text == tokenizer.decode([72]) + expected_text(4, 0, 1)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 2)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_with_no_token_to_answer_an_echo_scores_the_prompt_and_nothing_else(
    make_router: MakeRouter, tokenizer: Tokenizer, is_streamed: bool
) -> None:
    body = {"prompt": [70, 71], "max_tokens": 0, "echo": True, "logprobs": 1, "stream": is_streamed}
    if is_streamed:
        body["stream_options"] = {"include_usage": True}
    async with make_router().http() as http:
        answer = await http.post("/v1/completions", json=body)
        refused = await http.post("/v1/completions", json={"prompt": "x", "max_tokens": 0})
    events = answer.text.removeprefix("data: ").split("\n\ndata: ")
    first, last = (json.loads(events[0]), json.loads(events[-2])) if is_streamed else [answer.json()] * 2
    assert len(events) == (3 if is_streamed else 1)
    assert first["choices"][0]["text"] == tokenizer.decode([70, 71])
    assert first["choices"][0]["finish_reason"] == "length"
    assert first["choices"][0]["logprobs"]["token_logprobs"] == [None, -0.5]
    assert last["usage"] == {"prompt_tokens": 2, "completion_tokens": 0, "total_tokens": 2}
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


async def test_the_openai_client_streams_completions_and_chat_logprobs(make_router: MakeRouter) -> None:
    router = make_router()
    async with router.openai() as client:
        stream = await client.completions.create(model="tiny", prompt="hi", max_tokens=4, seed=9, stream=True)
        assert "".join([event.choices[0].text async for event in stream]) == expected_text(9, 0, 4)
        chat = await client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=4, logprobs=True, top_logprobs=2
        )
        content = chat.choices[0].logprobs.content if chat.choices[0].logprobs else None
        assert content is not None
        assert len(content) == 4
        assert len(content[0].top_logprobs) == 2
        assert [model.id async for model in client.models.list()] == ["tiny"]
        assert (await client.models.retrieve("tiny")).id == "tiny"


async def test_mistakes_reach_the_openai_client_as_its_own_errors(make_router: MakeRouter) -> None:
    router = make_router()
    async with router.openai() as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model="tiny", messages=HELLO, temperature=9)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="gpt-5", messages=HELLO)
        assert missing.value.code == "model_not_found"


async def test_a_failure_before_the_first_token_is_an_honest_status(make_router: MakeRouter) -> None:
    router = make_router()
    router.backend.ready["baseline"] = 0
    async with router.http() as http:
        body = {"messages": HELLO, "stream": True}
        answer = await http.post("/v1/chat/completions", json=body, headers={"x-request-id": "mine"})
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "service_unavailable_error"
        assert answer.headers["x-request-id"] == "mine"
        assert (await http.get("/health")).status_code == 503


async def test_a_failure_after_the_first_byte_is_an_error_event_without_done(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.failover.FIRST_PAUSE_SECONDS", 0.0001)
    router = make_router()
    router.backend.faults["speculative"] = Fault(2, ReplicaLost("died"))
    router.backend.faults["baseline"] = Fault(0, ReplicaLost("all are gone"))
    async with router.http() as http:
        answer = await http.post(
            "/v1/chat/completions",
            json={"messages": HELLO, "stream": True, "max_tokens": 9},
            headers={"x-fleet-path": "speculative"},
        )
    assert answer.status_code == 200
    assert "[DONE]" not in answer.text
    last = json.loads(answer.text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["message"] == "all are gone"


async def test_overload_is_429_with_retry_after(make_router: MakeRouter) -> None:
    router = make_router(max_in_flight=1, max_queued=0)
    router.backend.faults["baseline"] = Fault(0)
    async with router.http() as http:
        holding = asyncio.create_task(http.post("/v1/completions", json={"prompt": "x"}))
        while not router.backend.open:  # noqa: ASYNC110 - the fake has no event for this
            await asyncio.sleep(0)
        answer = await http.post("/v1/completions", json={"prompt": "x"})
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_disconnects_cancels_down_to_the_replica(
    make_router: MakeRouter, is_streamed: bool
) -> None:
    router = make_router()
    router.route(0)
    router.backend.faults["baseline"] = Fault(2)
    body = json.dumps({"messages": HELLO, "max_tokens": 9, "stream": is_streamed}).encode()
    has_left = asyncio.Event()
    incoming = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if incoming:
            return incoming.pop()
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        pass

    serving = asyncio.create_task(router.app(dict(SCOPE), receive, send))
    while not router.backend.open:  # noqa: ASYNC110 - the fake has no event for this
        await asyncio.sleep(0)
    has_left.set()
    await serving
    assert router.backend.open == set()
    compared = router.tally("baseline")["compared"]
    assert compared is not None
    assert compared.outcomes == {"cancelled": 1}  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_does_not_read_is_given_up(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch, is_streamed: bool
) -> None:
    monkeypatch.setattr("router.http_api.READING_SECONDS", 0.0)
    router = make_router(request_timeout_s=0.1, max_in_flight=1)
    body = json.dumps({"messages": HELLO, "max_tokens": 9, "stream": is_streamed}).encode()
    incoming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not incoming:
            await asyncio.Event().wait()
        return incoming.pop()

    async def send(message: Message) -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(30):
        await router.app(dict(SCOPE), receive, send)
    assert router.backend.open == set()
    assert sum(router.dispatcher.ledger.in_flight.values()) == 0


async def test_ids_path_and_seed_come_back_in_headers_and_the_seed_repeats_the_answer(
    make_router: MakeRouter,
) -> None:
    router = make_router()
    async with router.http() as http:
        body = {"messages": HELLO, "max_tokens": 4}
        first = await http.post("/v1/chat/completions", json=body, headers={"x-request-id": "abc"})
        assert first.headers["x-request-id"] == "abc"
        assert first.json()["id"] == "chatcmpl-abc"
        assert first.headers["x-fleet-path"] == "baseline"
        seed = int(first.headers["x-fleet-seed"])
        assert seed == first.json()["metrics"]["fleet"]["seed"] < 2**53
        again = await http.post("/v1/chat/completions", json=body | {"seed": seed})
    assert again.json()["choices"] == first.json()["choices"]


async def test_tokenize_and_detokenize_are_inverse_and_say_what_fits(
    make_router: MakeRouter, tokenizer: Tokenizer
) -> None:
    async with make_router().http() as http:
        answer = (await http.post("/tokenize", json={"prompt": "Größe 🙂", "add_special_tokens": False})).json()
        assert answer["tokens"] == tokenizer.encode("Größe 🙂", add_special_tokens=False)
        assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), 256)
        back = await http.post("/detokenize", json={"tokens": answer["tokens"]})
        assert back.json() == {"prompt": "Größe 🙂"}
        chat = await http.post("/tokenize", json={"messages": HELLO})
        assert chat.json()["tokens"] == tokenizer.render_chat(HELLO)
        assert (await http.post("/detokenize", json={"tokens": [384]})).json()["error"]["param"] == "tokens"
        assert (await http.post("/tokenize", json={})).status_code == 400
        described = (await http.get("/tokenizer_info")).json()
    specials = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    assert described.items() >= {**specials, "chat_template": CHAT_TEMPLATE}.items()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("GET", "/v1/completions", 405), ("POST", "/v1/models", 405), ("PUT", "/health", 405)],
)
async def test_wrong_routes_and_methods_are_refused_in_openais_shape(
    make_router: MakeRouter, method: str, path: str, status: int
) -> None:
    async with make_router().http() as http:
        answer = await http.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("content_type", "raw", "status"),
    [
        ("text/plain", b"{}", 415),
        ("application/json", b"[]", 400),
        ("application/json", b"\xff", 400),
        ("application/json", b"", 400),
        ("application/json; charset=utf-8", b'{"prompt": "x", "max_tokens": 1}', 200),
        ("application/json", b"[" * 100_000, 400),
        ("application/json", b" " * (16 * 2**20 + 1), 413),
    ],
    ids=["type", "array", "utf8", "empty", "charset", "deep", "large"],
)
async def test_bodies_that_are_no_request_are_refused(
    make_router: MakeRouter, content_type: str, raw: bytes, status: int
) -> None:
    async with make_router().http() as http:
        answer = await http.post("/v1/completions", content=raw, headers={"content-type": content_type})
    assert answer.status_code == status
    if status != 200:
        assert answer.json()["error"]["message"]


async def test_api_keys_name_tenants_and_guard_everything_but_health_and_metrics(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_KEY", "sk-acme")
    router = make_router(api_keys={"acme": "env:ACME_KEY", "other": "sk-other"})
    async with router.http() as http:
        for path in ("/health", "/ping", "/version", "/metrics"):
            assert (await http.get(path)).status_code == 200
        assert (await http.get("/v1/models")).status_code == 401
        assert (await http.get("/v1/models", headers={"authorization": "Bearer sk-wrong"})).status_code == 401
        assert (await http.get("/v1/models", headers={"authorization": "Bearer sk-acme"})).status_code == 200
        body = {"prompt": "x"}
        assert (await http.post("/v1/completions", json=body)).json()["error"]["code"] == "invalid_api_key"
    async with router.openai(api_key="sk-other") as client:
        await client.completions.create(model="tiny", prompt="x")


async def test_the_admin_api_needs_its_token_and_passes_commands_on(make_router: MakeRouter) -> None:
    shut = make_router()
    async with shut.http() as http:
        assert (await http.get("/admin/status")).status_code == 403
    router = make_router(admin_token="secret")
    async with router.http(headers={"authorization": "Bearer secret"}) as http:
        assert (await http.get("/admin/status")).json() == {"state": "idle"}
        answer = await http.post("/admin/canary/abort", json={"reason": "test"})
        assert answer.json() == {"command": "abort", "arguments": {"reason": "test"}}
        assert (await http.post("/admin/canary/pause")).status_code == 200
        assert router.control.commands == [("abort", {"reason": "test"}), ("pause", {})]
        assert (await http.post("/admin/canary/abort", content=b"[1]")).status_code == 400
        assert (await http.post("/reset_prefix_cache")).status_code == 200
        router.control.is_away = True
        assert (await http.get("/admin/status")).status_code == 503
    async with router.http(headers={"authorization": "Bearer wrong"}) as http:
        assert (await http.post("/admin/canary/abort")).status_code == 401
        assert (await http.post("/reset_prefix_cache")).status_code == 401


async def test_metrics_are_the_controllers_and_outlast_its_absence(make_router: MakeRouter) -> None:
    router = make_router()
    async with router.http() as http:
        router.control.is_away = True
        assert (await http.get("/metrics")).status_code == 503
        router.control.is_away = False
        present = await http.get("/metrics")
        router.control.is_away = True
        absent = await http.get("/metrics")
    assert present.text == absent.text
    assert present.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_a_scrape_shows_every_token_that_was_sent_before_it(make_router: MakeRouter) -> None:
    router = make_router()
    async with router.http() as http:
        for _ in range(2):
            await http.post("/v1/completions", json={"prompt": "x", "max_tokens": 5})
            await http.get("/metrics")
    tallies = [report.served["baseline"].output_tokens for report in router.control.reports]
    assert tallies == [5, 5]


async def test_a_session_keeps_its_path_and_half_of_them_get_each(make_router: MakeRouter) -> None:
    router = make_router()
    router.route(50)
    paths: dict[str, set[str]] = {}
    async with router.http() as http:
        for number in range(90):
            session = f"session-{number % 30}"
            answer = await http.post(
                "/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers={"X-Session-Id": session}
            )
            paths.setdefault(session, set()).add(answer.headers["x-fleet-path"])
    assert all(len(used) == 1 for used in paths.values())
    assert {path for used in paths.values() for path in used} == {"baseline", "speculative"}


async def test_over_a_real_socket_events_arrive_one_by_one_and_a_closed_connection_cancels(
    make_router: MakeRouter,
) -> None:
    router = make_router(report_interval_s=0.01)
    router.backend.faults["baseline"] = Fault(3, times=1)
    server = uvicorn.Server(uvicorn.Config(router.app, host="127.0.0.1", port=0, log_level="error"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for this
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with openai.AsyncOpenAI(api_key="x", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0) as client:
        stream = await client.completions.create(model="tiny", prompt="hi", max_tokens=9, seed=2, stream=True)
        # The stream hangs after three tokens, so these can only be read because nothing is held back.
        read = [(await anext(stream)).choices[0].text for _ in range(3)]
        assert "".join(read) == expected_text(2, 0, 3)
        await stream.close()
        async with asyncio.timeout(5):
            while router.backend.open:  # noqa: ASYNC110 - the fake has no event for this
                await asyncio.sleep(0.005)
        whole = await client.completions.create(model="tiny", prompt="hi", max_tokens=9, seed=2)
        assert whole.choices[0].text == expected_text(2, 0, 9)
    server.should_exit = True
    await serving
    outcomes = [report.served["baseline"].outcomes for report in router.control.reports if report.served]
    assert {name for counts in outcomes for name in counts} == {"cancelled", "done"}


@given(
    path=st.sampled_from(["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/admin/canary/x"]),
    raw=st.binary(max_size=60) | st.from_regex(rb'\{"(prompt|messages|tokens|n|stop)": ?[\[\{"0-9a-z\]\}]{0,12}\}?'),
)
def test_no_bytes_are_answered_with_a_500(make_router: MakeRouter, path: str, raw: bytes) -> None:
    async def post() -> int:
        async with make_router(admin_token="t").http(headers={"authorization": "Bearer t"}) as http:
            answer = await http.post(path, content=raw, headers={"content-type": "application/json"})
            return answer.status_code

    assert asyncio.run(post()) < 500

import asyncio
import io
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import httpx
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from deploy.bench import load
from deploy.bench.answer import Answer
from deploy.bench.load import LoadDriver, NothingAnswered
from deploy.bench.load_plan import LoadPlan, conversations
from deploy.bench.load_result import UNKNOWN_PATH, LoadResult, failures_line, render, summarise
from deploy.bench.prompts import Prompt, load_prompts
from fleet.clock import SystemClock
from fleet.errors import ConfigError
from fleet.traffic import Outcome
from router.stopwatch import Stopwatch
from tests.fakes import ManualClock

PROMPTS = (Prompt("a", "chat", ("first",)), Prompt("b", "chat", ("second", "and then?")))


def plan(**changes: Any) -> LoadPlan:
    return LoadPlan(**({"url": "http://fleet", "prompts": PROMPTS, "concurrency": 2, "requests": 6} | changes))


def event(text: str, tokens: int, finish: str | None = None) -> dict[str, Any]:
    usage = {"prompt_tokens": 5, "completion_tokens": tokens}
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}], "usage": usage}


def usage_event(tokens: int, path: str) -> dict[str, Any]:
    speculative = {"num_draft_tokens": 4, "num_accepted_draft_tokens": 3}
    metrics = {"fleet": {"path": path, "fallbacks": 1}, "speculative_decoding": speculative}
    return {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}, "metrics": metrics}


ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
STREAM = [ROLE, event("one ", 1), event("two three", 3, "stop"), usage_event(3, "baseline"), "[DONE]"]


class Events(httpx.AsyncByteStream):
    """Server-sent events; the clock moves 10 ms before each."""

    def __init__(self, events: list[Any], clock: ManualClock) -> None:
        self._events = events
        self._clock = clock

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for item in self._events:
            self._clock.advance(0.010)
            await asyncio.sleep(0)
            yield f"data: {item if isinstance(item, str) else json.dumps(item)}\n\n".encode()


async def drive(
    a_plan: LoadPlan, answer: Callable[[httpx.Request, ManualClock], httpx.Response]
) -> tuple[LoadResult, list[httpx.Request]]:
    clock = ManualClock()
    asked = []

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny"}]})
        asked.append(request)
        return answer(request, clock)

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle), base_url=a_plan.url) as client:
        return await LoadDriver(a_plan, client, clock).run(), asked


def good(_: httpx.Request, clock: ManualClock) -> httpx.Response:
    return httpx.Response(200, stream=Events(STREAM, clock))


# --- the plan


def test_the_same_seed_asks_the_same_and_another_seed_does_not() -> None:
    first, again, other = (
        list(islice(conversations(plan(prompts=load_prompts(), requests=None, duration_seconds=1.0, seed=seed)), 50))
        for seed in (3, 3, 4)
    )
    assert first == again
    assert [item.prompt for item in first] != [item.prompt for item in other]


def test_every_prompt_is_asked_once_before_any_is_asked_again() -> None:
    prompts = load_prompts()
    endless = conversations(plan(prompts=prompts, requests=None, duration_seconds=1.0))
    for _ in range(2):
        assert {item.prompt.id for item in islice(endless, len(prompts))} == {prompt.id for prompt in prompts}


@pytest.mark.parametrize("requests", [1, 2, 3, 7, 100])
def test_the_turns_add_up_to_the_requests_and_no_sampling_seed_is_used_twice(requests: int) -> None:
    planned = list(conversations(plan(requests=requests)))
    assert sum(item.turns for item in planned) == requests
    seeds = [item.seed + turn for item in planned for turn in range(item.turns)]
    assert len(set(seeds)) == requests


def test_poisson_arrivals_have_the_rate_and_the_spread_of_a_poisson_process() -> None:
    due = [
        item.due_seconds or 0.0
        for item in conversations(plan(concurrency=None, rate_per_second=50.0, requests=None, duration_seconds=100.0))
    ]
    assert due == sorted(due)
    assert len(due) == pytest.approx(5000, abs=4 * 5000**0.5)
    per_second = Counter(int(at) for at in due)
    mean = sum(per_second.values()) / 100
    variance = sum((per_second[second] - mean) ** 2 for second in range(100)) / 99
    assert variance / mean == pytest.approx(1.0, abs=0.6)


@pytest.mark.parametrize(
    "changes",
    [
        {"concurrency": None},
        {"rate_per_second": 1.0},
        {"requests": None},
        {"requests": 0},
        {"users": 0},
        {"prompts": ()},
        {"concurrency": -1},
    ],
)
def test_an_impossible_plan_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        plan(**changes)


# --- one answer


def test_an_answer_is_timed_by_token_bearing_events_alone() -> None:
    answer = Answer(Stopwatch(0.0))
    for number, item in enumerate(STREAM, start=1):
        answer.feed(item if isinstance(item, str) else json.dumps(item), number * 0.010)
    assert answer.text == "one two three"
    assert answer.outcome() is Outcome.DONE
    assert (answer.path, answer.fallbacks, answer.drafted, answer.accepted) == ("baseline", 1, 4, 3)
    assert (answer.prompt_tokens, answer.output_tokens) == (5, 3)
    assert answer.watch.ttft == pytest.approx(0.020)
    assert answer.watch.e2e == pytest.approx(0.030)
    assert answer.watch.tpot == pytest.approx(0.005)
    assert answer.gaps == pytest.approx([0.010])
    assert len(answer.itl) == 2


def test_without_running_usage_every_event_with_text_counts_as_one_token() -> None:
    answer = Answer(Stopwatch(0.0))
    for number in range(3):
        answer.feed(json.dumps({"choices": [{"delta": {"content": "x"}}]}), number * 0.010)
    assert (answer.watch.tokens, answer.output_tokens) == (3, 3)
    answer.feed(json.dumps({"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 7}}), 0.040)
    assert answer.output_tokens == 7
    assert answer.watch.e2e == pytest.approx(0.020)


@pytest.mark.parametrize("events", [STREAM[:-1], STREAM[:2], [*STREAM[:2], "[DONE]"], []])
def test_an_answer_without_its_end_is_truncated(events: list[Any]) -> None:
    answer = Answer(Stopwatch(0.0))
    for item in events:
        answer.feed(item if isinstance(item, str) else json.dumps(item), 1.0)
    assert answer.outcome() is Outcome.TRUNCATED


def test_an_error_in_the_stream_is_a_failure_with_its_message() -> None:
    answer = Answer(Stopwatch(0.0))
    answer.feed(json.dumps(event("one", 1)), 1.0)
    answer.feed('{"error": {"message": "replica lost", "type": "server_error"}}', 2.0)
    assert answer.outcome() is Outcome.FAILED
    assert answer.error == "replica lost"


# --- the driver


async def test_a_closed_loop_asks_all_turns_with_the_answers_before_them() -> None:
    result, asked = await drive(plan(), good)
    assert len(result.records) == len(asked) == 6
    assert {record.outcome for record in result.records} == {Outcome.DONE}
    bodies = [json.loads(request.content) for request in asked]
    follow_ups = [body["messages"] for body in bodies if len(body["messages"]) > 1]
    assert follow_ups
    for messages in follow_ups:
        assert [message["role"] for message in messages] == ["user", "assistant", "user"]
        assert messages[1]["content"] == "one two three"
    assert {body["model"] for body in bodies} == {"tiny"}
    assert len({body["seed"] for body in bodies}) == 6


async def test_a_user_keeps_its_session_and_the_options_are_sent() -> None:
    options = plan(users=3, requests=9, api_key="secret", path="speculative", temperature=0.8)
    _, (trial, *asked) = await drive(options, good)
    assert (json.loads(trial.content)["max_tokens"], trial.headers["x-fleet-path"]) == (1, "speculative")
    sessions = Counter(request.headers["x-session-id"] for request in asked)
    assert len(sessions) == 3
    assert {request.headers["authorization"] for request in asked} == {"Bearer secret"}
    assert {request.headers["x-fleet-path"] for request in asked} == {"speculative"}
    assert {json.loads(request.content)["temperature"] for request in asked} == {0.8}


async def test_a_closed_loop_never_has_more_open_than_its_concurrency() -> None:
    open_now = peak = 0

    class Counting(Events):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            nonlocal open_now, peak
            open_now += 1
            peak = max(peak, open_now)
            async for piece in super().__aiter__():
                yield piece
            open_now -= 1

    def answer(_: httpx.Request, clock: ManualClock) -> httpx.Response:
        return httpx.Response(200, stream=Counting(STREAM, clock))

    await drive(plan(concurrency=3, requests=30), answer)
    assert peak == 3


async def test_a_closed_loop_stops_asking_when_its_time_is_up() -> None:
    result, _ = await drive(plan(concurrency=1, requests=None, duration_seconds=0.475, prompts=PROMPTS[:1]), good)
    assert len(result.records) == 10


async def test_an_open_loop_measures_from_the_moment_a_request_was_due() -> None:
    a_plan = plan(concurrency=None, rate_per_second=200.0, requests=4, prompts=PROMPTS[:1])

    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Events(STREAM, ManualClock()))

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle), base_url="http://fleet") as client:
        result = await LoadDriver(replace(a_plan, model="tiny"), client, SystemClock()).run()
    due = sorted(record.due for record in result.records)
    planned = [item.due_seconds or 0.0 for item in conversations(a_plan)]
    assert [at - due[0] for at in due] == pytest.approx([at - planned[0] for at in planned])
    assert all(record.send_delay >= 0 for record in result.records)


@pytest.mark.parametrize(
    ("response", "outcome", "message"),
    [
        (httpx.Response(429, text="full"), Outcome.SHED, "full"),
        (httpx.Response(503, text="no replica"), Outcome.FAILED, "no replica"),
        (httpx.Response(200, text="data: not json\n\n"), Outcome.FAILED, "JSON"),
        (httpx.Response(200, text=""), Outcome.TRUNCATED, None),
    ],
)
async def test_a_request_that_goes_wrong_is_recorded_and_ends_its_conversation(
    response: httpx.Response, outcome: Outcome, message: str | None
) -> None:
    result, asked = await drive(plan(prompts=PROMPTS[1:], concurrency=1, requests=2), lambda *_: response)
    (record,) = result.records
    assert len(asked) == 1
    assert record.outcome is outcome
    assert record.path == UNKNOWN_PATH
    assert record.error is None if message is None else message in (record.error or "")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(httpx.ReadTimeout("late"), Outcome.TIMED_OUT), (httpx.ConnectError("gone"), Outcome.FAILED)],
)
async def test_a_broken_connection_is_an_outcome_not_an_exception(error: Exception, outcome: Outcome) -> None:
    def answer(*_: Any) -> httpx.Response:
        raise error

    result, _ = await drive(plan(), answer)
    assert {record.outcome for record in result.records} == {outcome}


async def test_a_server_that_names_no_model_is_one_clear_error() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"data": []}))
    async with httpx.AsyncClient(transport=transport, base_url="http://fleet") as client:
        with pytest.raises(ConfigError, match="which model"):
            await LoadDriver(plan(), client, ManualClock()).run()


async def test_an_unknown_path_is_refused_at_once_in_the_server_s_words() -> None:
    message = "x-fleet-path: there is no path 'nope'; known: baseline"
    refusal = {"error": {"message": message, "param": "x-fleet-path"}}
    asked = []

    def answer(request: httpx.Request, _: ManualClock) -> httpx.Response:
        asked.append(request)
        return httpx.Response(400, json=refusal)

    with pytest.raises(ConfigError, match=re.escape(f"--path nope: {message}")):
        await drive(plan(path="nope"), answer)
    assert len(asked) == 1


# --- the summary


async def test_the_summary_separates_paths_and_counts_users_who_moved() -> None:
    paths = iter(["baseline", "baseline", "speculative", "baseline"])

    def answer(_: httpx.Request, clock: ManualClock) -> httpx.Response:
        stream = [*STREAM[:3], usage_event(3, next(paths)), "[DONE]"]
        return httpx.Response(200, stream=Events(stream, clock))

    result, _ = await drive(plan(users=1, concurrency=1, requests=4, prompts=PROMPTS[:1]), answer)
    summary = summarise(result)
    assert {path: figures.requests for path, figures in summary.paths.items()} == {"baseline": 3, "speculative": 1}
    assert summary.moves == {("baseline", "speculative"): 1, ("speculative", "baseline"): 1}
    assert summary.total.output_tokens == 12
    assert summary.total.acceptance == pytest.approx(0.75)
    assert summary.total.outcomes == {Outcome.DONE: 4}
    assert summary.total.tpot is not None
    assert summary.total.tpot.p50 == pytest.approx(0.005)


async def test_failures_are_counted_and_each_reason_is_told_once() -> None:
    answers = iter(
        [httpx.Response(400, json={"error": {"message": "too long"}})] * 2 + [httpx.Response(503, text="no replica")]
    )

    def answer(request: httpx.Request, clock: ManualClock) -> httpx.Response:
        return next(answers, None) or good(request, clock)

    result, _ = await drive(plan(requests=5, prompts=PROMPTS[:1], concurrency=1), answer)
    summary = summarise(result)
    assert failures_line(summary) == "3 of 5 requests failed: 2 × HTTP 400: too long; 1 × HTTP 503: no replica"


def test_a_run_without_one_answer_fails_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = httpx.Response(401, json={"error": {"message": "this key is not known"}})

    async def refuse(a_plan: LoadPlan, _: object) -> LoadResult:
        return (await drive(a_plan, lambda *_: refused))[0]

    monkeypatch.setattr(load, "drive", refuse)
    app = typer.Typer()
    app.command()(load.load_command)
    done = CliRunner().invoke(app, ["--requests", "4"])
    assert isinstance(done.exception, NothingAnswered)
    assert (done.exception.exit_code, str(done.exception)) == (
        1,
        "4 of 4 requests failed: HTTP 401: this key is not known",
    )


async def test_the_table_shows_every_path_and_survives_a_run_without_an_answer() -> None:
    result, _ = await drive(plan(concurrency=1), good)
    empty, _ = await drive(plan(), lambda *_: httpx.Response(503, text="no"))
    for a_result, words in ((result, ("baseline", "6 done", "20.0")), (empty, (UNKNOWN_PATH, "failed", "–"))):
        screen = io.StringIO()
        Console(width=120, file=screen).print(render(summarise(a_result)))
        shown = screen.getvalue()
        assert all(word in shown for word in words)

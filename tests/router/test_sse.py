"""The bytes of a streamed answer, and the shapes of log-probabilities and metrics in both APIs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import ReplicaLost
from fleet.generation import FinishReason, Round, SamplingParams, TokenChunk, TokenLogprob
from fleet.tokenizer import Tokenizer
from fleet.traffic import SamplingMode
from router.answers import Choice, CompletionLogprobs, Envelope, full_body, metrics_of
from router.intake import AnswerStyle, Api, Job
from router.ledger import Account, Ledger
from router.split import Assignment
from router.sse import DONE, STREAM_VERSION, EventWriter, error_event

ENVELOPE = Envelope("id-1", 1_700_000_000, "tiny")


def job(api: Api = Api.CHAT, *, n: int = 1, logprobs: int | None = None, **style: Any) -> Job:
    sampling = SamplingParams(seed=5, max_tokens=9, logprobs=logprobs, prompt_logprobs=bool(style.get("echoed")))
    return Job("req", ((70, 71),), n, sampling, AnswerStyle(api, is_streamed=True, **style))


def account_of(asked: Job) -> Account:
    account = Ledger("r").open("x", Assignment("speculative", True), 1.0, asked.choices)
    account.admitted(1.5, asked.prompt_tokens, SamplingMode.GREEDY)
    return account


def chunk(text: str, tokens: int = 1, finish: FinishReason | None = None, **more: Any) -> TokenChunk:
    return TokenChunk("x", tuple(range(80, 80 + tokens)), text, finish=finish, **more)


def events_of(raw: bytes) -> list[dict[str, Any]]:
    assert raw.endswith(b"\n\n") or not raw
    parts = [part for part in raw.decode("ascii").split("\n\n") if part]
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def written(asked: Job, chunks: Sequence[TokenChunk], tokenizer: Tokenizer) -> list[list[dict[str, Any]]]:
    writer = EventWriter(ENVELOPE, asked, account_of(asked), tokenizer)
    return [events_of(writer.chunk(0, one)) for one in chunks]


def test_a_chat_names_the_role_then_has_one_event_per_step_and_finishes_on_the_last(tokenizer: Tokenizer) -> None:
    steps = written(
        job(), [chunk("He", 1), chunk("llo wo", 3), chunk("rld", 2, FinishReason.STOP, stop_reason="!")], tokenizer
    )
    deltas = [[event["choices"][0]["delta"] for event in step] for step in steps]
    assert deltas == [
        [{"role": "assistant", "content": ""}, {"content": "He"}],
        [{"content": "llo wo"}],
        [{"content": "rld"}],
    ]
    finishes = [event["choices"][0]["finish_reason"] for step in steps for event in step]
    assert finishes == [None, None, None, "stop"]
    for event in (event for step in steps for event in step):
        assert (event["id"], event["object"], event["model"]) == ("id-1", "chat.completion.chunk", "tiny")
        assert "usage" not in event
    assert steps[-1][0]["choices"][0]["stop_reason"] == "!"


def test_a_step_whose_text_is_held_back_has_no_event_and_an_empty_finish_has_an_empty_delta(
    tokenizer: Tokenizer,
) -> None:
    steps = written(job(), [chunk("a"), chunk(""), chunk("b"), chunk("", 1, FinishReason.STOP)], tokenizer)
    assert [len(step) for step in steps] == [2, 0, 1, 1]
    assert steps[-1][0]["choices"][0]["delta"] == {}


def test_a_first_step_without_text_still_opens_the_chat(tokenizer: Tokenizer) -> None:
    steps = written(job(), [chunk(""), chunk("x")], tokenizer)
    assert [[e["choices"][0]["delta"] for e in step] for step in steps] == [
        [{"role": "assistant", "content": ""}],
        [{"content": "x"}],
    ]


def test_text_completions_stream_their_own_shape(tokenizer: Tokenizer) -> None:
    steps = written(job(Api.COMPLETIONS), [chunk("a"), chunk("b", 1, FinishReason.LENGTH)], tokenizer)
    assert [event["object"] for step in steps for event in step] == ["text_completion"] * 2
    assert [event["choices"][0]["text"] for step in steps for event in step] == ["a", "b"]
    assert steps[1][0]["choices"][0]["finish_reason"] == "length"


EVENTS_BY_VERSION = {1: "cd2128637a931831"}


def test_events_that_carry_something_else_need_another_version(tokenizer: Tokenizer) -> None:
    """Where this fails because events were meant to change, raise `STREAM_VERSION` and note the new digest."""
    steps = [chunk("He", 1), chunk("", 2), chunk("llo wo", 3), chunk("rld", 2, FinishReason.STOP, stop_reason="!")]
    digest = blake2b(digest_size=8)
    for api in Api:
        writer = EventWriter(ENVELOPE, job(api), account_of(job(api)), tokenizer)
        for step in steps:
            digest.update(b"step" + writer.chunk(0, step))
    assert EVENTS_BY_VERSION[STREAM_VERSION] == digest.hexdigest()


def test_usage_comes_last_without_choices_and_only_if_asked_for(tokenizer: Tokenizer) -> None:
    silent = EventWriter(ENVELOPE, job(), account_of(job()), tokenizer)
    assert silent.usage() == b""
    asked = job(has_usage_chunk=True)
    writer = EventWriter(ENVELOPE, asked, account_of(asked), tokenizer)
    writer.chunk(0, chunk("abc", 3))
    (event,) = events_of(writer.usage())
    assert event["choices"] == []
    assert event["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}


def test_continuous_usage_counts_up_on_every_event_of_a_step(tokenizer: Tokenizer) -> None:
    asked = job(has_usage_chunk=True, has_continuous_usage=True)
    steps = written(asked, [chunk("a", 1), chunk("", 2), chunk("bc", 3)], tokenizer)
    counts = [event["usage"]["completion_tokens"] for step in steps for event in step if "usage" in event]
    assert counts == [1, 3, 6]


def test_chat_logprobs_have_text_bytes_and_alternatives(tokenizer: Tokenizer) -> None:
    entry = TokenLogprob(80, -0.25, ((80, -0.25), (81, float("-inf"))))
    steps = written(job(logprobs=2), [chunk("x", 1, logprobs=(entry,))], tokenizer)
    (shown,) = steps[0][1]["choices"][0]["logprobs"]["content"]
    assert (shown["token"], shown["logprob"]) == (tokenizer.token_text(80), -0.25)
    assert shown["bytes"] == list(tokenizer.token_bytes(80))
    assert [top["logprob"] for top in shown["top_logprobs"]] == [-0.25, -9999.0]


def test_an_echoed_prompt_leads_text_and_logprobs_as_evaluation_tools_read_them(tokenizer: Tokenizer) -> None:
    asked = job(Api.COMPLETIONS, logprobs=1, echoed=("ab",))
    entries = [TokenLogprob(71, -1.0, ((72, -0.5),)), TokenLogprob(80, -0.25, ((80, -0.25),))]
    first = chunk("x", 1, FinishReason.LENGTH, logprobs=(entries[1],), prompt_logprobs=(None, entries[0]))
    (event,) = written(asked, [first], tokenizer)[0]
    choice = Choice()
    choice.begin(asked, 0)
    choice.add(first)
    whole = full_body(ENVELOPE, asked, [choice], account_of(asked), tokenizer)["choices"][0]
    for shown in (event["choices"][0], whole):
        assert shown["text"] == "abx"
        assert shown["logprobs"]["tokens"] == [tokenizer.token_text(t) for t in (70, 71, 80)]
        assert shown["logprobs"]["token_logprobs"] == [None, -1.0, -0.25]
        assert shown["logprobs"]["text_offset"] == [0, 1, 2]
        assert shown["logprobs"]["top_logprobs"][0] is None
        # Greedy exactly where the token is its dictionary's best, which is how lm-eval decides it.
        assert shown["logprobs"]["top_logprobs"][1] == {tokenizer.token_text(72): -0.5, tokenizer.token_text(71): -1.0}
        assert shown["logprobs"]["top_logprobs"][2] == {tokenizer.token_text(80): -0.25}


def test_offsets_of_a_streamed_choice_go_on_where_the_last_step_ended(tokenizer: Tokenizer) -> None:
    pieces = CompletionLogprobs(tokenizer)
    entries = [TokenLogprob(token, -0.5) for token in (80, 81, 82)]
    first = pieces.render((80, 81), entries[:2])
    second = pieces.render((82,), entries[2:])
    assert first["text_offset"] + second["text_offset"] == [0, 1, 2]


def test_of_two_tokens_that_read_alike_the_likelier_is_shown(tokenizer: Tokenizer) -> None:
    halves = [t for t in range(3, 259) if tokenizer.token_text(t) == "�"][:2]
    entry = TokenLogprob(halves[0], -3.0, ((halves[1], -0.1),))
    assert CompletionLogprobs(tokenizer).render((halves[0],), (entry,))["top_logprobs"] == [{"�": -0.1}]


@given(rounds=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30))
def test_the_speculation_block_is_valid_as_load_tools_check_it(rounds: list[tuple[int, int]]) -> None:
    asked = job()
    account = account_of(asked)
    for number, (drafted, accepted) in enumerate(rounds):
        account.note(0, 2.0 + number, chunk("x", 1, round=Round(drafted, min(drafted, accepted))))
    metrics = metrics_of(asked, account)
    assert metrics is not None
    block = metrics["speculative_decoding"]
    if block is None:
        assert all(drafted == 0 for drafted, _ in rounds)
        return
    histogram = block["acceptance_histogram"]
    assert len(histogram) == block["num_spec_tokens"] + 1
    assert sum(histogram) == block["num_spec_steps"]
    assert sum(j * count for j, count in enumerate(histogram)) == block["num_accepted_draft_tokens"]
    assert block["num_accepted_draft_tokens"] <= block["num_draft_tokens"]
    assert block["mean_acceptance_length"] == 1 + block["num_accepted_draft_tokens"] / block["num_spec_steps"]


def test_metrics_are_in_milliseconds_and_say_who_served(tokenizer: Tokenizer) -> None:
    asked = job()
    account = account_of(asked)
    account.note(0, 2.0, chunk("x", 1, queue_seconds=0.25))
    account.note(0, 2.1, chunk("xyz", 4))
    metrics = metrics_of(asked, account)
    assert metrics is not None
    assert metrics["time_to_first_token_ms"] == 1000
    assert metrics["generation_time_ms"] == pytest.approx(100)
    assert metrics["queue_time_ms"] == 750
    assert metrics["mean_itl_ms"] == pytest.approx(25)
    assert metrics["tokens_per_second"] == pytest.approx(40)
    assert (metrics["fleet"]["path"], metrics["fleet"]["seed"]) == ("speculative", 5)
    assert metrics_of(job(n=2), account) is None


@given(text=st.text(st.characters(), min_size=1))
def test_any_text_travels_unchanged_in_one_event(tokenizer: Tokenizer, text: str) -> None:
    steps = written(job(), [chunk("first"), chunk(text)], tokenizer)
    assert [event["choices"][0]["delta"]["content"] for event in steps[1]] == [text]


def test_an_error_ends_the_stream_in_openais_shape() -> None:
    (event,) = events_of(error_event(ReplicaLost("all replicas are gone")))
    assert event["error"]["message"] == "all replicas are gone"
    assert DONE == b"data: [DONE]\n\n"

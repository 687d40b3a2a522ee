"""API bodies -> generation words: every field arrives, every mistake is named."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import BadRequest, NotFound
from fleet.tokenizer import Tokenizer
from router.intake import Intake, Job
from router.openai_schema import ChatBody, CompletionBody, parse

USER = {"role": "user", "content": "hello"}


def chat(intake: Intake, **fields: Any) -> Job:
    body = {"model": "tiny", "messages": [USER], **fields}
    return intake.chat(parse(ChatBody, json.dumps(body).encode()), "req-1")


def completion(intake: Intake, **fields: Any) -> Job:
    body = {"prompt": "hello", **fields}
    return intake.completion(parse(CompletionBody, json.dumps(body).encode()), "req-1")


def test_a_bare_chat_gets_openais_defaults_the_rest_of_the_context_and_a_seed(
    intake: Intake, tokenizer: Tokenizer
) -> None:
    job = chat(intake)
    prompt = tuple(tokenizer.render_chat([USER]))
    assert job.prompts == (prompt,)
    sampling = job.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
    assert (sampling.seed, sampling.max_tokens, sampling.stop) == (4711, 256 - len(prompt), ())
    assert (sampling.logprobs, job.choices, job.style.is_streamed) == (None, 1, False)


def test_every_sampling_field_reaches_the_engine(intake: Intake) -> None:
    sampling = chat(
        intake, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=-1, stop=["a", "b"], stop_token_ids=[5],
        include_stop_str_in_output=True, max_completion_tokens=20, min_tokens=3, ignore_eos=True,
        repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=-0.3, logit_bias={"7": -100, "9": 2.5},
        logprobs=True, top_logprobs=4,
    ).sampling  # fmt: skip
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.1)
    assert (sampling.seed, sampling.stop, sampling.stop_token_ids) == (2**64 - 1, ("a", "b"), (5,))
    assert (sampling.max_tokens, sampling.min_tokens, sampling.ignore_eos) == (20, 3, True)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.1, 0.2, -0.3)
    assert (sampling.logit_bias, sampling.logprobs) == (((7, -100.0), (9, 2.5)), 4)
    assert sampling.include_stop_in_output


@pytest.mark.parametrize(("asked", "used"), [(5e-324, 0.0), (9.9e-6, 0.0), (1e-5, 1e-5), (0, 0.0)])
def test_a_temperature_that_leaves_noise_no_say_is_greedy(intake: Intake, asked: float, used: float) -> None:
    assert chat(intake, temperature=asked).sampling.temperature == used


def test_null_means_unset_and_unknown_fields_are_ignored(intake: Intake) -> None:
    bare = chat(intake)
    nulls = dict.fromkeys(
        ["temperature", "top_p", "stop", "n", "seed", "logprobs", "stream", "stream_options", "tools", "logit_bias"]
    )
    assert chat(intake, **nulls) == bare
    assert chat(intake, parallel_tool_calls=True, store=False, metadata={"a": "b"}, priority=3, best_thing=1) == bare


def test_max_completion_tokens_wins_over_the_deprecated_name(intake: Intake) -> None:
    assert chat(intake, max_tokens=5, max_completion_tokens=7).sampling.max_tokens == 7
    assert chat(intake, max_tokens=5).sampling.max_tokens == 5


def test_content_may_be_parts_and_a_developer_speaks_for_the_system(intake: Intake, tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    job = chat(intake, messages=[{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}])
    plain = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one\ntwo"}]
    assert list(job.prompts[0]) == tokenizer.render_chat(plain)


def test_a_conversation_can_go_on_from_its_last_message(intake: Intake, tokenizer: Tokenizer) -> None:
    messages = [USER, {"role": "assistant", "content": "I think"}]
    job = chat(intake, messages=messages, continue_final_message=True)
    assert list(job.prompts[0]) == tokenizer.render_chat(
        messages, add_generation_prompt=False, continue_final_message=True
    )


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("hello", 1), (["hello", "you"], 2), ([70, 71], 1), ([[70], [71, 72]], 2)],
)
def test_a_prompt_may_be_text_or_tokens_one_or_several(
    intake: Intake, tokenizer: Tokenizer, prompt: Any, count: int
) -> None:
    job = completion(intake, prompt=prompt, n=3)
    assert len(job.prompts) == count
    assert job.choices == 3 * count
    assert job.prompts[0] == (tuple(tokenizer.encode("hello")) if "hello" in str(prompt) else job.prompts[0])
    assert [job.generation(c, "x").choice_index for c in range(job.choices)] == [0, 1, 2] * count
    assert [job.generation(c, "x").prompt_token_ids for c in (0, job.choices - 1)] == [job.prompts[0], job.prompts[-1]]


def test_completions_answer_in_16_tokens_unless_told_otherwise(intake: Intake) -> None:
    assert completion(intake).sampling.max_tokens == 16
    assert completion(intake, prompt=[70] * 250).sampling.max_tokens == 6


def test_echo_with_logprobs_asks_for_those_of_the_prompt(intake: Intake) -> None:
    job = completion(intake, prompt=[[70, 71]], echo=True, logprobs=1, max_tokens=1)
    assert (job.sampling.prompt_logprobs, job.sampling.logprobs) == (True, 1)
    assert job.style.echoed == (intake.tokenizer.decode([70, 71]),)
    assert not completion(intake, echo=True).sampling.prompt_logprobs


def test_speculation_can_be_bounded_or_switched_off_by_the_request(intake: Intake) -> None:
    assert chat(intake).num_speculative_tokens is None
    assert chat(intake, speculation={"num_speculative_tokens": 0}).generation(0, "x").num_speculative_tokens == 0


CHAT_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": "x" * 2000}]}, "messages"),
    ({"temperature": 2.5}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"seed": 1.5}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10_000}, "max_tokens"),
    ({"max_completion_tokens": 10_000}, "max_completion_tokens"),
    ({"min_tokens": 9, "max_tokens": 5}, "min_tokens"),
    ({"stop": ""}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": 7}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop_token_ids": [384]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"logit_bias": {"384": 1}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 1, "01": 1}}, "logit_bias"),
    ({"logit_bias": {"٣": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options"),
    ({"user": 5}, "user"),
    ({"request_id": "new\nline"}, "request_id"),
    ({"speculation": {"num_speculative_tokens": 33}}, "speculation"),
    ({"speculation": 4}, "speculation"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"chat_template": "{{ x }}"}, "chat_template"),
    ({"echo": True}, "echo"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"model": 3}, "model"),
]


@pytest.mark.parametrize(("fields", "param"), CHAT_MISTAKES, ids=lambda value: str(value)[:60])
def test_every_mistake_in_a_chat_is_a_bad_request_that_names_the_field(
    intake: Intake, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(intake, **fields)
    assert caught.value.http_status == 400
    assert caught.value.param == param
    assert str(caught.value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [384]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({"prompt": [70] * 256}, "prompt"),
        ({"prompt": ["x"] * 1025}, "prompt"),
        ({"prompt": ["x"] * 100, "n": 100}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"best_of": 3}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"max_tokens": 256}, "max_tokens"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_every_mistake_in_a_completion_is_a_bad_request_that_names_the_field(
    intake: Intake, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        completion(intake, **fields)
    assert caught.value.param == param


@pytest.mark.parametrize("prompts", [["x"] * 1025, [[70]] * 1025])
def test_too_many_prompts_are_told_how_many_there_may_be(intake: Intake, prompts: list[Any]) -> None:
    with pytest.raises(BadRequest) as caught:
        completion(intake, prompt=prompts)
    assert str(caught.value) == "prompt: list should have at most 1024 items after validation, not 1025"


def test_a_prompt_that_does_not_fit_says_so_in_openais_code(intake: Intake) -> None:
    with pytest.raises(BadRequest, match="has 256 tokens; the context holds 256") as caught:
        completion(intake, prompt=[70] * 256)
    assert caught.value.code == "context_length_exceeded"


def test_a_text_far_beyond_the_context_is_refused_before_it_is_tokenized(
    intake: Intake, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "encode", lambda *_, **__: pytest.fail("it was tokenized"))
    text = "x" * (intake.model.max_model_len * tokenizer.longest_token_bytes)
    with pytest.raises(BadRequest, match="at least 256 tokens") as caught:
        intake.completion(CompletionBody(prompt=text), "r")
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
    with pytest.raises(BadRequest) as caught:
        intake.chat(ChatBody(messages=[{"role": "user", "content": text}]), "r")
    assert caught.value.param == "messages"


def test_another_model_is_not_found(intake: Intake) -> None:
    with pytest.raises(NotFound, match="'gpt-5' does not exist; this server has 'tiny'") as caught:
        chat(intake, model="gpt-5")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"7", b"null", b'"x"', b"\xff\xfe", b'{"messages": "\xff"}', b"{}x"])
def test_a_body_that_is_no_json_object_is_a_bad_request(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(ChatBody, raw)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*CompletionBody.model_fields, "tools", "suffix"]), JSON_VALUES, max_size=4))
def test_no_json_object_gets_anything_but_a_job_or_a_bad_request(intake: Intake, fields: dict[str, Any]) -> None:
    raw = json.dumps({"prompt": "hello"} | fields).encode()
    with suppress(BadRequest):
        job = intake.completion(parse(CompletionBody, raw), "r")
        assert job.longest_prompt + job.sampling.max_tokens <= 256

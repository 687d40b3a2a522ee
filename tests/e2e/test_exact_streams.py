"""The same prompt and seed give the same text on every path, also when the draft dies in mid-stream."""

from __future__ import annotations

import asyncio
import time
from asyncio import Task
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.e2e.harness import Fleet, kill, on_path, prompts, stream_text, wait_until

DRAFT = "draft"
PROMPTS = 2
LENGTH = 32
QUESTION = "Why is the sky blue?"


@pytest.fixture(scope="module")
def fleet(real_fleet: Fleet) -> Fleet:
    return real_fleet


def test_a_fleet_is_up_when_its_draft_has_joined(fleet: Fleet) -> None:
    assert fleet.path(DRAFT)["draft"] in ("healthy", "degraded")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_the_speculative_path_answers_byte_for_byte_like_the_baseline(fleet: Fleet, temperature: float) -> None:
    options = {"temperature": temperature, "seed": 7, "max_tokens": LENGTH}
    async with fleet.client() as client:
        for prompt in prompts(PROMPTS):
            wanted, given = await asyncio.gather(
                *(stream_text(client, prompt.turns[0], **options, **on_path(name)) for name in ("baseline", DRAFT))
            )
            assert given == wanted


async def test_speculation_really_takes_place(fleet: Fleet) -> None:
    """Asked until it does: on a busy machine the breaker may just have opened, and its pause outlasts an answer."""
    until = time.monotonic() + 120
    while (speculation := await speculation_of_an_answer(fleet)) is None:
        assert time.monotonic() < until, f"it did not draft: {fleet.path(DRAFT)}"
    assert 0 < speculation["num_accepted_draft_tokens"] < speculation["num_draft_tokens"]


async def speculation_of_an_answer(fleet: Fleet) -> dict[str, Any] | None:
    """What an answer says about its drafts; None where it had none."""
    async with fleet.client() as client:
        answer = await client.chat.completions.create(
            model="SmolLM2-135M-Instruct",
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=48,
            temperature=0,
            **on_path(DRAFT),
        )
    assert answer.model_extra is not None
    found: dict[str, Any] | None = answer.model_extra["metrics"]["speculative_decoding"]
    return found


async def test_a_draft_killed_in_mid_stream_changes_no_byte(fleet: Fleet) -> None:
    content = prompts(1)[0].turns[0]

    def greedy_and_sampled(client: AsyncOpenAI, path: str) -> list[Task[str]]:
        options = {"seed": 11, "max_tokens": 96} | on_path(path)
        answers = (stream_text(client, content, temperature=value, **options) for value in (0.0, 0.8))
        return [asyncio.create_task(answer) for answer in answers]

    wait_until(lambda: fleet.path(DRAFT)["draft"] == "healthy", seconds=90, what="a healthy draft")
    pid = fleet.path(DRAFT)["replicas"][0]["draft_pid"]
    async with fleet.client() as client:
        wanted = await asyncio.gather(*greedy_and_sampled(client, "baseline"))
        running = greedy_and_sampled(client, DRAFT)
        await asyncio.sleep(0.5)
        assert not any(stream.done() for stream in running), "the draft must die in the middle of both"
        kill(pid)
        assert await asyncio.gather(*running) == wanted
    wait_until(
        lambda: (
            fleet.path(DRAFT)["replicas"][0]["draft_pid"] not in (None, pid) and fleet.path(DRAFT)["draft"] == "healthy"
        ),
        seconds=90,
        what="a new draft",
    )

"""The fleet that tools are run against, asked by the `openai` client, which needs no environment of its own."""

from openai import AsyncOpenAI

from tests.tools.conftest import ServedFleet

TOKENS = 96


async def test_a_client_reads_acceptance_and_waiting_off_its_own_answer(speculative: ServedFleet) -> None:
    async with AsyncOpenAI(api_key="none", base_url=f"{speculative.url}/v1") as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "a a a a a a a a"}],
            max_tokens=TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        parts = [part async for part in stream]
    metrics = parts[-1].model_extra["metrics"]  # type: ignore[index]
    speculation = metrics["speculative_decoding"]
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == TOKENS
    (answer,) = await speculative.recorder.finished()
    assert answer.metrics == metrics
    shown = sum(bool(part.choices and part.choices[0].delta.content) for part in parts)
    assert 0 < shown <= answer.served.chunks, "a step that completes no character shows nothing"
    assert 0 <= speculation["num_accepted_draft_tokens"] <= speculation["num_draft_tokens"]
    assert speculation["num_draft_tokens"] > 0
    assert metrics["queue_time_ms"] >= 0

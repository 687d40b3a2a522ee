"""Three bad canaries, each taken back by the guardrail it offends, without harm to a single stream."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import pytest_asyncio

from deploy.bench.load import drive
from deploy.bench.load_plan import LoadPlan
from deploy.bench.load_result import RequestRecord
from fleet.traffic import Outcome
from tests.e2e.harness import Fleet, on_path, prompts, stream_text, wait_until

LENGTH = 16
PROMPTS = 6


@pytest.fixture(scope="module")
def fleet(shallow_fleet: Fleet) -> Fleet:
    return shallow_fleet


def rollback_plan(canary: str, guardrails: dict[str, Any]) -> dict[str, Any]:
    return {
        "stable": "baseline",
        "canary": canary,
        "steps": [{"weight": 50, "bake": "10m"}, {"weight": 100}],
        "window": "2s",
        "warmup_windows": 1,
        "guardrails": guardrails,
    }


def is_drained(fleet: Fleet, canary: str) -> bool:
    """Whether the canary's 0 % has reached every router, as the journal knows, and its last stream has ended."""
    events = fleet.command("history", limit=5)["events"]
    applied = any(event["event"] == "SplitApplied" and event["state"] == "rolled_back" for event in events)
    return applied and fleet.path(canary)["in_flight"] == 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wanted(fleet: Fleet) -> dict[str, str]:
    """What every prompt must be answered with, by its id."""
    options = {"max_tokens": LENGTH, "temperature": 0} | on_path("baseline")
    async with fleet.client() as client:
        asked = prompts(PROMPTS)
        texts = await asyncio.gather(*(stream_text(client, prompt.turns[0], **options) for prompt in asked))
    return {prompt.id: text for prompt, text in zip(asked, texts, strict=True)}


async def roll_out_under_load(fleet: Fleet, name: str, plan: dict[str, Any]) -> tuple[int, list[RequestRecord]]:
    """Exit code of `fleet canary start --wait` and every request that was served meanwhile."""
    file = fleet.plan(name, plan)
    started = fleet.run("canary", "start", "-f", str(file))
    assert started.returncode == 0, started.stderr
    records: list[RequestRecord] = []
    load = LoadPlan(
        url=fleet.url,
        prompts=tuple(prompts(PROMPTS)),
        concurrency=8,
        duration_seconds=400,
        users=60,
        max_tokens=LENGTH,
        temperature=0.0,
    )
    driver = asyncio.create_task(drive(load, records.append))
    waited = await asyncio.to_thread(fleet.run, "canary", "status", "-w", "--timeout", "380", timeout=400)
    await asyncio.to_thread(
        wait_until, lambda: is_drained(fleet, plan["canary"]), seconds=30, what="the canary has no streams left"
    )
    driver.cancel()
    await asyncio.gather(driver, return_exceptions=True)
    return waited.returncode, records


@pytest.mark.parametrize(
    ("canary", "guardrail", "guardrails"),
    [
        ("slow", "itl_p95", {"itl_p95": {"max_increase": "10%"}}),
        ("useless", "acceptance", {"acceptance": {"max_decrease": "10%", "reference": 0.9}}),
        ("oom", "oom", {"error_rate": {"max_increase": "5pp"}}),
    ],
)
async def test_a_bad_canary_is_taken_back_and_no_stream_notices(
    fleet: Fleet, wanted: dict[str, str], canary: str, guardrail: str, guardrails: dict[str, Any]
) -> None:
    code, records = await roll_out_under_load(fleet, f"bad-{canary}", rollback_plan(canary, guardrails))
    assert code == 3

    history = json.loads(fleet.run("canary", "history", "-o", "json").stdout)
    assert history[-1]["event"] == "SplitApplied"
    assert history[-1]["state"] == "rolled_back"
    assert history[-1]["weight"] == 0
    rollout = fleet.status()["rollout"]
    assert rollout["state"] == "rolled_back"
    assert guardrail in rollout["reason"]

    assert {record.outcome for record in records} == {Outcome.DONE}
    first_turns = [record for record in records if record.turn == 0]
    assert len(first_turns) > 5
    assert any(record.path == canary for record in records)
    assert all(record.text == wanted[record.prompt_id] for record in first_turns)

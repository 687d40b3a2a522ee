"""kill -9 of every process in turn while 16 streams run: what must survive does, and no text is ever wrong."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio
from openai import APIError

from fleet.errors import BadRequest
from tests.e2e.harness import Fleet, kill, on_path, prompts, stream_text, wait_until

STREAMS = 16
LENGTH = 96
PLAN = {
    "stable": "baseline",
    "canary": "layers",
    "steps": [{"weight": 50, "bake": "30m"}, {"weight": 100}],
    "window": "5s",
    "guardrails": {"error_rate": {"max_increase": "50pp"}},
}


@pytest.fixture(scope="module")
def fleet(shallow_fleet: Fleet) -> Fleet:
    return shallow_fleet


def contents() -> list[str]:
    mixed = prompts(8)
    return [mixed[index % len(mixed)].turns[0] for index in range(STREAMS)]


def options(index: int) -> dict[str, Any]:
    return {
        "max_tokens": LENGTH,
        "temperature": 0.8 if index % 2 else 0.0,
        "seed": 100 + index,
        "extra_body": {"ignore_eos": True},
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wanted(fleet: Fleet) -> list[str]:
    """What every stream must say, from an undisturbed baseline."""
    async with fleet.client() as client:
        streams = [
            stream_text(client, content, **options(index), **on_path("baseline"))
            for index, content in enumerate(contents())
        ]
        return list(await asyncio.gather(*streams))


@pytest.fixture
def rollout(fleet: Fleet) -> Any:
    fleet.command("start", plan=PLAN)
    wait_until(lambda: fleet.status()["split"]["canary_percent"] == 50, seconds=30, what="the canary's share")
    yield
    with suppress(BadRequest):  # where it ended by itself
        fleet.command("abort", reason="the test is over")


async def streams_during(fleet: Fleet, victim: int) -> list[str | APIError | Exception]:
    """Texts (or errors) of 16 streams, half of them on the canary, with one process killed meanwhile."""
    async with fleet.client() as client:
        tasks = [
            asyncio.create_task(
                stream_text(client, content, **options(index), extra_headers={"x-session-id": f"user-{index}"})
            )
            for index, content in enumerate(contents())
        ]
        await asyncio.sleep(1.0)
        assert not all(task.done() for task in tasks)
        kill(victim)
        return list(await asyncio.gather(*tasks, return_exceptions=True))  # type: ignore[arg-type]


def first_replica(fleet: Fleet, path: str) -> dict[str, Any]:
    wait_until(lambda: bool(fleet.path(path)["replicas"]), seconds=120, what=f"a replica of {path}")
    replica: dict[str, Any] = fleet.path(path)["replicas"][0]
    return replica


def assert_draft_is_back(fleet: Fleet, before: dict[str, Any]) -> None:
    """The draft's target has a new one, which works, and has not itself been restarted for it."""

    def is_another() -> bool:
        return fleet.path("layers")["replicas"][0]["draft_pid"] not in (None, before["draft_pid"])

    wait_until(is_another, seconds=60, what="a new draft process")
    wait_until(lambda: fleet.path("layers")["draft"] == "healthy", seconds=60, what="the new draft joins")
    assert fleet.path("layers")["replicas"][0]["pid"] == before["pid"]


@pytest.mark.usefixtures("rollout")
@pytest.mark.parametrize("victim", ["draft", "canary target", "stable target", "controller"])
async def test_no_stream_notices_that_a_process_was_killed(fleet: Fleet, wanted: list[str], victim: str) -> None:
    before = fleet.status()
    pids = {
        "draft": lambda: first_replica(fleet, "layers")["draft_pid"],
        "canary target": lambda: first_replica(fleet, "layers")["pid"],
        "stable target": lambda: first_replica(fleet, "baseline")["pid"],
        "controller": lambda: fleet.status()["controller_pid"],
    }
    assert await streams_during(fleet, pids[victim]()) == wanted
    for path, count in (("baseline", 2), ("layers", 1)):
        wait_until(
            lambda path=path, count=count: len(fleet.path(path)["replicas"]) >= count,
            seconds=120,
            what=f"{count} replicas of {path}",
        )
    if victim == "draft":
        assert_draft_is_back(fleet, next(path for path in before["paths"] if path["path"] == "layers")["replicas"][0])
    after = fleet.status()
    if victim == "controller":
        assert after["rollout"]["id"] == before["rollout"]["id"]
        assert after["rollout"]["state"] == "baking"
        assert after["split"]["canary_percent"] == before["split"]["canary_percent"]
        assert after["rollout"]["bake_elapsed_seconds"] >= before["rollout"]["bake_elapsed_seconds"]
        assert after["rollout"]["requests"] >= before["rollout"]["requests"]


@pytest.mark.usefixtures("rollout")
async def test_a_killed_router_breaks_only_its_own_streams(fleet: Fleet, wanted: list[str]) -> None:
    results = await streams_during(fleet, fleet.status()["routers"][0]["pid"])
    for text, right in zip(results, wanted, strict=True):
        assert isinstance(text, Exception) or text == right
    async with fleet.client() as client:

        async def answers() -> str:
            return await stream_text(client, contents()[0], **options(0))

        for _ in range(120):
            try:
                assert await answers() == wanted[0]
                break
            except APIError:
                await asyncio.sleep(0.5)
        else:
            pytest.fail("the router did not come back")
    assert fleet.status()["split"]["canary_percent"] == 50

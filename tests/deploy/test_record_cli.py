"""A rollout's record leaves through the API, and is judged again by the command line."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from deploy import canary_cli
from deploy.admin_client import AdminClient
from deploy.cli import app
from deploy.record_cli import changed
from fleet.errors import ConfigError
from tests.canary.world import World, plan


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    found = World(tmp_path_factory.mktemp("world"))
    found.run(2)
    limits = {"itl_p95": {"max_increase": "90%"}}
    found.command("start", plan=plan(guardrails=limits, steps=[{"weight": 50, "bake": "60s"}, {"weight": 100}]))
    found.behaviours["speculative"].itl_seconds = 0.048
    found.run(40)
    found.command("abort", reason="enough")
    yield found
    found.controller.close()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, world: World) -> Callable[..., Any]:
    def answer(request: httpx.Request) -> httpx.Response:
        arguments = json.loads(request.content) | {"limit": 9}
        return httpx.Response(200, json=world.command(request.url.path.rpartition("/")[2], **arguments))

    monkeypatch.setattr(
        canary_cli, "connect", lambda *_: AdminClient("http://fleet", None, transport=httpx.MockTransport(answer))
    )
    return lambda *arguments: CliRunner().invoke(app, ["canary", *map(str, arguments)])


@pytest.fixture
def record(run: Callable[..., Any], tmp_path: Path) -> Path:
    file = tmp_path / "record.jsonl"
    done = run("export", file)
    assert done.exit_code == 0
    assert done.stderr == f"{len(file.read_text().splitlines())} events written to {file}\n"
    return file


def test_the_export_is_the_whole_rollout_with_everything_that_was_recorded(record: Path, world: World) -> None:
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    history = world.command("history", windows=True, limit=1000)["events"]
    assert [{key: line[key] for key in history[0]} for line in lines] == history
    windows = [line["body"] for line in lines if line["event"] == "WindowClosed"]
    assert len(windows) > 9
    assert all(body["window"]["seconds"] > 0 for body in windows)


def test_an_export_to_stdout_is_nothing_but_lines(run: Callable[..., Any], record: Path) -> None:
    assert run("export", "-").stdout == record.read_text()


def test_a_record_may_be_compressed(run: Callable[..., Any], record: Path, tmp_path: Path) -> None:
    packed = tmp_path / "record.jsonl.gz"
    assert run("export", packed).exit_code == 0
    assert gzip.decompress(packed.read_bytes()) == record.read_bytes()
    assert run("simulate", "--events", packed).stdout == run("simulate", "--events", record).stdout
    packed.write_bytes(packed.read_bytes()[:-20])
    broken = run("simulate", "--events", packed)
    assert isinstance(broken.exception, ConfigError)
    assert "cannot read" in str(broken.exception)


def test_the_same_plan_is_said_to_decide_the_same(run: Callable[..., Any], record: Path) -> None:
    said = run("simulate", "--events", record).stdout
    assert "recorded: aborted after 40" in said
    assert "simulated: aborted after 40" in said
    assert "every decision is the recorded one" in said
    assert "verdicts at the end: 5 of 5 as recorded (itl_p95 " in said
    assert re.search(r"nearest to tripping: itl_p95 with evidence [\d.e-]+ of 20 after \d+s$", said, re.MULTILINE)


def test_one_limit_can_be_asked_about_in_one_line(run: Callable[..., Any], record: Path) -> None:
    said = run("simulate", "--events", record, "--set", "guardrails.itl_p95.max_increase=5%").stdout
    assert "simulated: rolled_back after " in said
    assert "p95 time per token rose by more than 5 %" in said
    flat = " ".join(said.split())
    assert re.search(r"verdicts at the end: 4 of 5 as recorded; itl_p95 fail instead of (pass|insufficient) ", flat)
    assert re.search(r"nearest to tripping: itl_p95 with evidence .* of 20 after \d+s; as recorded evidence ", flat)
    found = json.loads(
        run("simulate", "--events", record, "--set", "guardrails.itl_p95.max_increase=5%", "-o", "json").stdout
    )
    assert found["simulated"][-1]["state"] == "rolled_back"
    assert found["parted"] == found["simulated"][-1]["seconds"]


def test_a_whole_plan_can_be_given_instead(run: Callable[..., Any], record: Path, tmp_path: Path) -> None:
    other = tmp_path / "plan.json"
    other.write_text(json.dumps(plan(guardrails={"error_rate": {"max_increase": "5pp"}})))
    assert "simulated: aborted" in run("simulate", "--events", record, "--plan", other).stdout


@pytest.mark.parametrize("change", ["steps", "=5", "a..b=1", "a=[", ".a=1"])
def test_a_change_that_cannot_be_read_is_refused(change: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        changed({}, change)


def test_a_change_keeps_everything_else() -> None:
    before = {"guardrails": {"oom": {}, "itl_p95": {"max_increase": "10%"}}, "window": "2s"}
    assert changed(before, "guardrails.itl_p95.max_increase=5%") == {
        "guardrails": {"oom": {}, "itl_p95": {"max_increase": "5%"}},
        "window": "2s",
    }
    assert before["guardrails"]["itl_p95"] == {"max_increase": "10%"}

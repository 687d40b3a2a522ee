"""`fleet canary aa`: what a person reads, and what a script sees."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from canary import event_json
from canary.calibration import Calibration, Fitness
from canary.events import WindowClosed
from canary.windows import Window
from deploy import calibration_cli, canary_cli
from deploy.admin_client import AdminClient
from deploy.cli import app
from fleet.errors import BadRequest
from tests.canary.test_calibration import recorded
from tests.canary.world import World, plan


def exported(window: Window) -> str:
    """A line of `fleet canary export`."""
    event = WindowClosed(1.0, window)
    facts = {"rollout": "speculative-1", "attempt": 1, "state": "baking", "weight": 25.0, "summary": ""}
    return json.dumps({**facts, "event": event_json.kind_of(event), "body": json.loads(event_json.written(event))})


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "plan.yaml").write_text(
        yaml.safe_dump(
            plan(
                steps=[{"weight": 25, "bake": "60s"}, {"weight": 100}],
                guardrails={"itl_p95": {"max_increase": "5%"}},
                alpha=0.1,
            )
        )
    )
    windows = recorded(30)
    (tmp_path / "events.jsonl").write_text("\n".join(exported(window) for window in windows))
    return ("canary", "aa", "--events", str(tmp_path / "events.jsonl"), "-f", str(tmp_path / "plan.yaml"))


@pytest.fixture
def world(files: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A fleet whose journal has a rollout at 25 %."""
    found = World(tmp_path, requests_per_second=12)
    found.run(2)
    found.command("start", plan=yaml.safe_load((tmp_path / "plan.yaml").read_text()))
    found.run(56)
    found.command("abort", reason="recorded enough")

    def answer(request: httpx.Request) -> httpx.Response:
        try:
            name = request.url.path.rpartition("/")[2]
            return httpx.Response(200, json=found.command(name, **json.loads(request.content)))
        except BadRequest as error:
            return httpx.Response(400, json={"error": {"message": str(error)}})

    def connect(*_: object) -> AdminClient:
        return AdminClient("http://fleet", None, transport=httpx.MockTransport(answer))

    monkeypatch.setattr(calibration_cli, "connect", connect)
    monkeypatch.setattr(canary_cli, "connect", connect)
    yield found
    found.controller.close()


def test_what_the_fleets_own_journal_shows_is_kept_there_and_start_heeds_it(
    files: tuple[str, ...], world: World
) -> None:
    options = ["-f", files[-1], "--runs", "20"]
    # The canary of this record is quicker: exchanged with stable in half of the runs it looks slow.
    unfit = CliRunner().invoke(app, ["canary", "aa", *options, "--arm", "canary"], env={"COLUMNS": "200"})
    assert unfit.exit_code == 5, unfit.output  # a window of 4 s may be fit; the plan's of 2 s is not
    assert "kept: `start` heeds what A/A rollouts of 'speculative-1' showed" in unfit.stdout
    refused = CliRunner().invoke(app, ["canary", "start", "-f", files[-1]])
    assert isinstance(refused.exception, BadRequest)
    assert "more than alpha 10.0%: no window that was tried is fit" in str(refused.exception)
    assert CliRunner().invoke(app, ["canary", "start", "-f", files[-1], "--manual"]).exit_code == 0
    assert world.rollout["plan"]["mode"] == "manual"


def test_a_person_reads_the_rate_and_what_follows_and_a_script_the_exit_code(files: tuple[str, ...]) -> None:
    fit = CliRunner().invoke(app, [*files, "--runs", "30"], env={"COLUMNS": "200"})
    assert fit.exit_code == 0, fit.output
    assert "fit to act alone: at most 10% of A/A rollouts are taken back; set window: 2s" in fit.stdout
    assert "not kept, as it is from a file" in fit.stdout
    assert "not tried" not in fit.stdout
    unknown = CliRunner().invoke(app, [*files, "--runs", "20", "-o", "json"])
    assert unknown.exit_code == 5
    assert json.loads(unknown.stdout)["fitness"] == "undecided"
    # Stable and the canary of this record differ widely: judged as twins they are not fit.
    unfit = CliRunner().invoke(app, [*files, "--runs", "20", "--arm", "canary"])
    assert unfit.exit_code == 3


def test_what_was_not_tried_is_said_beside_fit() -> None:
    found = Calibration(Fitness.FIT, 2.0, 0.1, (), 30, 1.0, ("kv_pressure", "acceptance"))
    out = Console(width=200, file=io.StringIO())
    out.print(calibration_cli.calibration_view(found))
    assert isinstance(out.file, io.StringIO)
    assert "fit to act alone" in out.file.getvalue()
    assert "not tried: kv_pressure, acceptance; the record says nothing of what they watch" in out.file.getvalue()

"""`fleet canary aa`: what a person reads, and what a script sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from canary import event_json
from canary.events import WindowClosed
from canary.windows import Window
from deploy.cli import app
from tests.canary.test_calibration import recorded
from tests.canary.world import plan


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


def test_a_person_reads_the_rate_and_what_follows_and_a_script_the_exit_code(files: tuple[str, ...]) -> None:
    fit = CliRunner().invoke(app, [*files, "--runs", "30"], env={"COLUMNS": "200"})
    assert fit.exit_code == 0, fit.output
    assert "fit to act alone: at most 10% of A/A rollouts are taken back; set window: 2s" in fit.stdout
    unknown = CliRunner().invoke(app, [*files, "--runs", "20", "-o", "json"])
    assert unknown.exit_code == 5
    assert json.loads(unknown.stdout)["fitness"] == "undecided"
    # Stable and the canary of this record differ widely: judged as twins they are not fit.
    unfit = CliRunner().invoke(app, [*files, "--runs", "20", "--arm", "canary"])
    assert unfit.exit_code == 3

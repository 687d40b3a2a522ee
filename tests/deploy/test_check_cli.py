"""`fleet check` from the command line: a table or JSON, exit code 0 or 2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from deploy.cli import app
from fleet.errors import ConfigError
from tests.replicas.compatibility import published
from tests.tiny_models import tiny_model_folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("check") / "target")


@pytest.fixture
def run() -> Callable[..., Any]:
    return lambda *arguments: CliRunner().invoke(app, ["check", *arguments], env={"COLUMNS": "200"})


@pytest.fixture
def config(tmp_path: Path, target: Path) -> Path:
    file = tmp_path / "fleet.yaml"
    paths = {
        "baseline": {},
        "good": {"speculative": {"method": "draft_model", "model": str(target)}},
        "bad": {"speculative": {"method": "draft_model", "layers": 99}},
        "lookup": {"speculative": {"method": "ngram"}},
    }
    file.write_text(yaml.safe_dump({"model": {"model": str(target)}, "paths": paths}))
    return file


def test_every_path_is_compared_and_one_wrong_pair_is_exit_code_2(run: Callable[..., Any], config: Path) -> None:
    done = run("-f", str(config))
    assert done.exit_code == 2
    assert "path 'bad': its first 99 layers for" in done.stdout
    assert "the target has 4 layers: set layers to 1 to 3" in done.stdout
    assert "chat template" in done.stdout
    assert "baseline" not in done.stdout


def test_one_path_alone_can_be_asked_for(run: Callable[..., Any], config: Path) -> None:
    assert run("-f", str(config), "--path", "good").exit_code == 0
    assert run("-f", str(config), "--path", "lookup").exit_code == 0
    assert run("-f", str(config), "--path", "bad").exit_code == 2
    nothing = run("-f", str(config), "--path", "baseline")
    assert (nothing.exit_code, nothing.stdout) == (0, "no path speculates: there is nothing to compare\n")


def test_json_holds_every_comparison(run: Callable[..., Any], config: Path) -> None:
    done = run("-f", str(config), "-o", "json")
    assert done.exit_code == 2
    reports = {report["path"]: report for report in json.loads(done.stdout)}
    assert {name: report["is_ok"] for name, report in reports.items()} == {"good": True, "bad": False, "lookup": True}
    (layers,) = reports["bad"]["findings"]
    assert layers == {
        "what": "layers",
        "target": "4",
        "proposer": "first 99",
        "problem": "the target has 4 layers",
        "remedy": "set layers to 1 to 3",
        "note": None,
    }


def test_a_pair_can_be_checked_without_a_config(run: Callable[..., Any], target: Path, tmp_path: Path) -> None:
    head = published.write_head(tmp_path / "head", published.eagle3(), published.EAGLE3_CONFIG)
    done = run("--target", str(target), "--proposer", f"eagle3:{head}")
    assert done.exit_code == 2
    assert "the target's is 48, the head was made for 32" in done.stdout
    assert run("--target", str(target), "--proposer", f"draft_model:{target}").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--path", "nope"], "has no path 'nope'; it has baseline"),
        (["--target", "x"], "give both: --target MODEL --proposer METHOD:MODEL"),
        (["--target", "/no/model", "--proposer", "eagle:/no/head"], "'/no/model': no such folder"),
    ],
)
def test_a_mistake_is_one_line(run: Callable[..., Any], arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        raise run(*arguments).exception

"""The command line of training: options from settings, errors in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from deploy.train.settings import DraftSettings, Eagle3Settings, EagleSettings, MedusaSettings, TrainSettings
from deploy.train_cli import app, command, read_settings
from fleet.errors import ConfigError

COMMANDS = {"draft": DraftSettings, "eagle": EagleSettings, "eagle3": Eagle3Settings, "medusa": MedusaSettings}


def run(kind: type[TrainSettings], *arguments: str) -> tuple[Result, list[TrainSettings]]:
    """The command's end, and what it would have acted on."""
    found: list[TrainSettings] = []
    single = typer.Typer()
    single.command()(command(kind, lambda settings, line: found.append(settings)))
    return CliRunner().invoke(single, list(arguments)), found


def parsed(kind: type[TrainSettings], *arguments: str) -> Any:
    """What the command would act on."""
    result, found = run(kind, *arguments)
    assert result.exit_code == 0, result.output
    return found[0]


@pytest.mark.parametrize(("name", "kind"), COMMANDS.items())
def test_every_setting_is_an_option_with_its_words(name: str, kind: type[TrainSettings]) -> None:
    result = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "300", "TERM": "dumb"})
    for field in kind.model_fields:
        assert f"--{field.replace('_', '-')}" in result.output


def test_options_become_settings(tmp_path: Path) -> None:
    text, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    text.write_text("Why?\n")
    lines.write_text('{"prompt": "How?"}\n')
    settings = parsed(
        Eagle3Settings,
        *("--out", "there", "--prompts", str(text), "--prompts", str(lines), "--temperatures", "0.5"),
        *("--learning-rate", "2e-4", "--draft-vocab", "4096", "--device", "cpu", "--dry-run"),
    )
    assert settings == Eagle3Settings(
        out=Path("there"),
        prompts=(text, lines),
        temperatures=(0.5,),
        learning_rate=2e-4,
        draft_vocab=4096,
        device="cpu",
        dry_run=True,
    )


def test_what_is_left_out_has_the_settings_defaults() -> None:
    assert parsed(DraftSettings, "--out", "there", "--generate", "1") == DraftSettings(out=Path("there"), generate=1)


def test_a_dry_run_says_what_it_will_do_before_it_does_anything() -> None:
    single = typer.Typer()
    single.command()(command(DraftSettings, lambda *_: typer.echo("acts", err=True)))
    said = CliRunner().invoke(single, ["--out", "there", "--generate", "1", "--dry-run"]).stderr.splitlines()
    assert said[-1] == "acts"
    assert said[0].startswith("dry run: loads SmolLM2")
    assert not CliRunner().invoke(single, ["--out", "there", "--generate", "1"]).stderr.startswith("dry run")


def test_the_depth_of_medusa_is_its_heads() -> None:
    arguments = ("--out", "there", "--generate", "1", "--depth", "3")
    assert parsed(EagleSettings, *arguments).depth == 3
    result, found = run(MedusaSettings, *arguments)
    assert (result.exit_code, found) == (2, [])
    assert "No such option: --depth" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dry-run"], "nothing to train on: give --prompts FILE or --generate N"),
        (["--held-out-prompts", "held.txt"], "nothing to train on"),
        (["--prompts", "/nope"], "cannot read prompts from /nope"),
        (["--generate", "5", "--held-out-prompts", "/nope"], "cannot read prompts from /nope"),
        (["--prompts", "/dev/null"], "/dev/null holds no prompts"),
    ],
)
def test_what_can_teach_nothing_is_refused_before_a_model_is_loaded(arguments: list[str], message: str) -> None:
    result, found = run(DraftSettings, "--out", "there", *arguments)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert found == []


def test_all_wrong_options_are_named_in_one_line() -> None:
    with pytest.raises(ConfigError) as raised:
        read_settings(EagleSettings, {"out": "there", "learning_rate": 7, "temperatures": [3.0]})
    assert str(raised.value) == (
        "--temperatures: Input should be less than or equal to 2; "
        "--learning-rate: Input should be less than or equal to 1"
    )


def test_the_command_line_needs_no_torch_to_be_read() -> None:
    code = "import sys, deploy.train_cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

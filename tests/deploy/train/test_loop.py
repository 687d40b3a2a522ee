"""Schedule, log and resumption."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

from deploy.train.loop import learning_rate
from deploy.train.metrics_log import Line, MetricsLog
from deploy.train.run import METRICS_FILE, learn, train
from deploy.train.screen import Screen
from deploy.train.settings import TrainSettings
from deploy.train.trainee import Method
from fleet.errors import ConfigError
from tests.deploy.train.tiny_target import METHODS, QUIET, lesson_of, method_of


class Killed(Exception):
    """In place of a signal."""


def settled(kind: str, out: Path, **changed: object) -> tuple[TrainSettings, Method]:
    return method_of(kind, out, **{"epochs": 4, "evaluate_every": 4, "checkpoint_every": 3, **changed})


def learnt(kind: str, out: Path, **changed: object) -> Mapping[str, Tensor]:
    """The tensors that a training, perhaps a resumed one, comes to."""
    settings, method = settled(kind, out, **changed)
    out.mkdir(exist_ok=True)
    return learn(method, settings, lesson_of(settings, method), MetricsLog(out / METRICS_FILE), QUIET).tensors


def die_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Die when the log has a step's line, as a kill between two checkpoints would."""
    write = MetricsLog.write

    def deadly(log: MetricsLog, line: Line) -> None:
        write(log, line)
        if line["step"] == step:
            raise Killed

    monkeypatch.setattr(MetricsLog, "write", deadly)


@pytest.mark.parametrize(
    "kind", ["eagle3", "medusa", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("draft_model", "eagle"))]
)
def test_a_resumed_training_gives_the_very_same_weights_and_log(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = learnt(kind, tmp_path / "whole")
    with monkeypatch.context() as patched:
        die_at(5, patched)
        with pytest.raises(Killed):
            learnt(kind, tmp_path / "cut")
    resumed = learnt(kind, tmp_path / "cut", cache_gib=0)
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert (tmp_path / "cut" / METRICS_FILE).read_text() == (tmp_path / "whole" / METRICS_FILE).read_text()


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    first, second = (learnt("eagle", tmp_path / str(seed), seed=seed, epochs=1) for seed in (0, 1))
    assert not torch.equal(first["fc.weight"], second["fc.weight"])


def test_a_training_with_other_settings_is_not_gone_on_with(tmp_path: Path) -> None:
    learnt("eagle", tmp_path)
    with pytest.raises(ConfigError, match="other learning_rate, token_weight; give another --out"):
        learnt("eagle", tmp_path, learning_rate=0.5, token_weight=0.5)


@pytest.mark.parametrize("kind", ["eagle3", "eagle"])
def test_everything_is_written(kind: str, tmp_path: Path) -> None:
    settings, method = settled(kind, tmp_path)
    train(method, settings, QUIET, f"fleet train {kind}")
    assert {file.name for file in tmp_path.iterdir() if file.is_file()} == {
        "README.md",
        "config.json",
        "metrics.jsonl",
        "model.safetensors",
        "training.png",
    }
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")
    card = (tmp_path / "README.md").read_text()
    assert card.startswith("---\nbase_model:")
    assert "| 1 | 0." in card or "| 1 | 1." in card
    assert re.search(r"MB\. The 120 tokens cover", card)
    last = MetricsLog(tmp_path / METRICS_FILE).lines()[-1]
    assert len(last["held_out_acceptance"]) == 3


def test_nothing_to_learn_is_said(tmp_path: Path) -> None:
    settings, method = settled("eagle", tmp_path, prompts=())
    with pytest.raises(ConfigError, match="--prompts FILE or --generate N"):
        train(method, settings, QUIET, "fleet train eagle")


def test_a_folder_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    settings, method = settled("eagle", tmp_path / "out")
    with pytest.raises(ConfigError, match=r"--out .* cannot be written to"):
        train(method, settings, QUIET, "fleet train eagle")


def test_answers_that_fill_the_context_are_refused(tmp_path: Path) -> None:
    settings, method = settled("eagle", tmp_path, answer_tokens=256)
    with pytest.raises(ConfigError, match="--answer-tokens 256 leaves no room"):
        train(method, settings, QUIET, "fleet train eagle")


def test_a_dry_run_says_sizes_and_time_and_writes_nothing(tmp_path: Path) -> None:
    settings, method = method_of("medusa", tmp_path / "out", dry_run=True, generate=5)
    text = StringIO()
    train(method, settings, Screen(Console(file=text, width=200)), "fleet train")
    assert text.getvalue().index("timing answers") < text.getvalue().index("M parameters")
    assert "13 answers" in text.getvalue()
    assert "in all" in text.getvalue()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", METHODS)
def test_the_rate_rises_and_falls_to_nothing(kind: str, tmp_path: Path) -> None:
    settings, _ = method_of(kind, tmp_path, warmup=0.1)
    rates = [learning_rate(step, 100, settings) for step in range(100)]
    assert rates[0] == pytest.approx(settings.learning_rate / 10)
    assert max(rates) == settings.learning_rate == rates[9]
    assert all(later < earlier for earlier, later in pairwise(rates[10:]))
    assert rates[-1] < settings.learning_rate / 100


def test_a_line_that_a_kill_cut_short_is_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"st')
    log = MetricsLog(file)
    assert [line["step"] for line in log.lines()] == [1, 2]
    log.keep_until(1)
    log.write({"step": 2})
    assert file.read_text() == '{"step": 1}\n{"step": 2}\n'

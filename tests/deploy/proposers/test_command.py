"""`make bench-proposers` and `make bench-draft-ahead` as a whole, on a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from transformers import LlamaConfig

from deploy.bench.draft_ahead import __main__ as draft_ahead
from deploy.bench.proposers import __main__ as proposers
from fleet.config import SpeculativeConfig
from tests.tiny import VOCABULARY
from tests.tiny_models import SIZES, tiny_model_folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target and prompts."""
    folder = tmp_path_factory.mktemp("bench")
    tiny_model_folder(folder / "target", LlamaConfig(**{**SIZES, "vocab_size": VOCABULARY}))
    lines = [{"id": n, "category": "chat", "turns": [f"There was a bridge {n}."]} for n in range(3)]
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    return folder


def run(monkeypatch: pytest.MonkeyPatch, command: object, place: Path, *options: str) -> None:
    common = ["--model", str(place / "target"), "--dtype", "float32", "--prompts-file", str(place / "prompts.jsonl")]
    monkeypatch.setattr(sys, "argv", ["bench", *common, *options])
    command.main()  # type: ignore[attr-defined]


def test_a_run_writes_its_tables_and_goes_on_with_more_rounds(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    document = tmp_path / "doc.md"
    document.write_text("<!-- bench-proposers: begin -->\n<!-- bench-proposers: end -->\n")
    small = [
        "--device", "cpu", "--proposers", "ngram", "--models", str(tmp_path), "--categories", "chat",
        "--temperatures", "0", "--concurrency", "1", "--tokens", "6", "--prompts", "1",
        "--results", str(tmp_path / "run.jsonl"), "--into", str(document),
    ]  # fmt: skip
    run(monkeypatch, proposers, place, *small, "--rounds", "1")
    assert "2 of 3: round 1, chat, temperature 0, 1 at a time, ngram" in capsys.readouterr().err
    assert "(1 of 5 rounds)" in document.read_text()
    run(monkeypatch, proposers, place, *small, "--rounds", "2")
    said = capsys.readouterr().err
    assert "round 2" in said
    assert "round 1," not in said, "what is measured is not measured again"
    run(monkeypatch, proposers, place, *small, "--rounds", "2")
    assert "preparing" not in capsys.readouterr().err, "with nothing left no model is loaded"
    assert "(2 of 5 rounds)" in document.read_text()
    with pytest.raises(SystemExit, match="other settings"):
        run(monkeypatch, proposers, place, *small, "--rounds", "2", "--tokens", "7")
    with pytest.raises(SystemExit, match="has whole rounds without suffix: take another --results"):
        run(monkeypatch, proposers, place, *small, "--rounds", "2", "--proposers", "ngram", "suffix")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--concurrency", "2000"], "max_num_seqs"),
        (["--categories", "poetry"], "no prompts of the category 'poetry'"),
        (["--proposers", "useless", "--draft-tokens", "99"], "num_speculative_tokens"),
        (["--proposers", "ngram@code"], "ngram is to be measured on code: add it to --categories"),
    ],
)
def test_impossible_options_are_one_line_before_anything_is_loaded(
    options: list[str], message: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    small = ["--proposers", "ngram", "--categories", "chat", "--results", str(tmp_path / "run.jsonl")]
    with pytest.raises(SystemExit, match=message) as raised:
        run(monkeypatch, proposers, place, *small, *options)
    assert "\n" not in str(raised.value)


def test_draft_ahead_is_measured_with_the_shipped_draft_unless_another_is_named(capsys: pytest.CaptureFixture[str]):
    def drafting(*options: str) -> SpeculativeConfig:
        return draft_ahead._speculative(draft_ahead._parser().parse_args(options), draft_ahead=True)

    assert drafting().model == "deploy/models/draft"
    assert (Path(str(drafting().model)) / "model.safetensors").is_file()
    assert drafting("--draft", "other").model == "other"
    assert (drafting("--layers", "15").model, drafting("--layers", "15").layers) == (None, 15)
    with pytest.raises(SystemExit):
        drafting("--draft", "other", "--layers", "15")
    assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.slow
def test_draft_ahead_is_measured_with_a_real_draft_process_and_simulated(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run(monkeypatch, draft_ahead, place, "--layers", "2", "--tokens", "24", "--rounds", "2", "--traces", "1")
    lines = capsys.readouterr().out.splitlines()
    serial, ahead = (next(line for line in lines if line.startswith(f"| {arm} |")) for arm in ("serial", "ahead"))
    assert "| 0% (0% – 0%) |" in serial
    assert "(2 of 5 rounds)" in ahead
    assert any(line.startswith("| 0.5 |") for line in lines), "the simulated rows"

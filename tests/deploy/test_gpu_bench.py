"""`make bench-gpu` as far as it goes without a GPU: on a tiny model on the CPU, where nothing is recorded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from deploy.bench import gpu
from deploy.bench.proposers.__main__ import _parser as proposers_parser
from deploy.bench.proposers.choice import EVERY
from fleet.config import DEFAULT_MODEL
from tests.tiny import VOCABULARY
from tests.tiny_models import SIZES, tiny_model_folder


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["bench-gpu", *options])
    gpu.main()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "--out", str(tmp_path / "out"))
    assert ended.value.code == 2
    assert capsys.readouterr().err == "this machine has no GPU that torch can use: nothing was measured\n"
    assert not (tmp_path / "out").exists()


def test_it_measures_prints_and_writes_what_it_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sizes = {**SIZES, "vocab_size": VOCABULARY, "num_hidden_layers": 1, "max_position_embeddings": 1024}
    model = tiny_model_folder(tmp_path / "model", LlamaConfig(**sizes))
    monkeypatch.setattr(gpu, "_proposers", lambda arguments: ["the proposers' tables"])
    small = ["--sequences", "1", "2", "--tokens", "4", "--context", "20", "--repetitions", "1", "--dtype", "float32"]
    run(monkeypatch, "--device", "cpu", "--no-tests", "--model", str(model), "--out", str(tmp_path / "out"), *small)
    shown = capsys.readouterr().out
    figures = json.loads((tmp_path / "out" / "engine.json").read_text())
    assert {(each["sequences"], each["arm"]) for each in figures["engine"]} == {
        (sequences, arm) for sequences in (0, 1, 2) for arm in ("graphs", "eager")
    }
    assert len(figures["verify"]) == 2 * 9
    assert figures["machine"]["torch"] == torch.__version__
    assert "| prefill | eager |" in shown
    assert "| 2 sequences | graphs |" in shown
    assert shown.endswith("the proposers' tables")


@pytest.mark.parametrize(
    ("model", "names"), [(DEFAULT_MODEL, {*gpu.SHIPPED, *gpu.EVERYWHERE}), ("other", {"ngram", "suffix"})]
)
def test_proposers_that_belong_to_the_model_are_asked_for(model: str, names: set[str]) -> None:
    arguments = gpu._parser().parse_args(["--model", model])
    asked = proposers_parser().parse_args(gpu.proposers_options(arguments))
    assert set(asked.proposers) == names <= {*EVERY}
    assert asked.device == "cuda"

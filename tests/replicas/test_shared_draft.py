"""A trained draft that stores neither embedding nor head: it borrows its target's, cut to the tokens it can draft."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig

from fleet.config import EngineConfig, ModelConfig, SpeculativeConfig
from fleet.errors import ConfigError
from replicas import model_store
from replicas.draft_model import load_draft
from replicas.engine.model import load_model
from replicas.engine.packing import Segment
from tests.tiny_models import SIZES, family_configs, tiny_model_folder

IDS = (0, 2, 5, 90, 91, 200, 383)
TOKENS = (7, 91, 5, 300, 2)
BORROWED = ("model.embed_tokens.weight", "lm_head.weight")


def draft_folder(folder: Path, target: Path, config: PreTrainedConfig, *, seed: int = 1) -> Path:
    """A whole random model, cut to what a shared draft stores; `whole` beside it has the target's embedding."""
    tiny_model_folder(folder, config, seed=seed)
    ends = load_file(target / "model.safetensors")
    tensors = load_file(folder / "model.safetensors")
    own = {name: tensor for name, tensor in tensors.items() if name not in BORROWED}
    for file in folder.iterdir():
        if file.name != "config.json":
            file.unlink()
    d2t = torch.tensor([token_id - row for row, token_id in enumerate(IDS)])
    save_file({**own, "d2t": d2t}, folder / "model.safetensors")
    raw = json.loads((folder / "config.json").read_text()) | {"shares_target_embedding": True}
    (folder / "config.json").write_text(json.dumps(raw))
    whole = folder.with_name("whole")
    tiny_model_folder(whole, config)
    save_file({**own, **{name: ends[name] for name in BORROWED if name in ends}}, whole / "model.safetensors")
    return folder


def expected_logits(whole: Path) -> Tensor:
    """Of the last token, by transformers, on the whole vocabulary."""
    module = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32)
    with torch.no_grad():
        logits: Tensor = module(torch.tensor([TOKENS])).logits[0, -1]
    return logits


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_it_computes_as_the_whole_model_would_and_proposes_nothing_else(family: str, tmp_path: Path) -> None:
    config = family_configs()[family]
    target = tiny_model_folder(tmp_path / "target", config)
    draft = draft_folder(tmp_path / "draft", target, config)
    model = load_model(draft, dtype="float32", device="cpu", kv_tokens=64, lender=target)
    logits = model.forward([Segment(0, 0, TOKENS, 1)]).logits[0]
    torch.testing.assert_close(logits[list(IDS)], expected_logits(tmp_path / "whole")[list(IDS)], atol=1e-4, rtol=1e-4)
    assert set(logits.isfinite().nonzero().flatten().tolist()) == set(IDS)


def test_a_separate_head_is_borrowed_too(tmp_path: Path) -> None:
    config = LlamaConfig(**SIZES, tie_word_embeddings=False)
    target = tiny_model_folder(tmp_path / "target", config)
    draft = draft_folder(tmp_path / "draft", target, config)
    model = load_model(draft, dtype="float32", device="cpu", kv_tokens=64, lender=target)
    logits = model.forward([Segment(0, 0, TOKENS, 1)]).logits[0]
    torch.testing.assert_close(logits[list(IDS)], expected_logits(tmp_path / "whole")[list(IDS)], atol=1e-4, rtol=1e-4)


def test_the_draft_worker_loads_it_with_the_targets_tokenizer(tmp_path: Path) -> None:
    target = tiny_model_folder(tmp_path / "target")
    draft = draft_folder(tmp_path / "draft", target, LlamaConfig(**{**SIZES, "num_hidden_layers": 2}))
    loaded = load_draft(
        ModelConfig(model=str(target), dtype="float32"),
        SpeculativeConfig(method="draft_model", model=str(draft)),
        EngineConfig(kv_cache_tokens=256),
    )
    assert loaded.hello.vocab_size == SIZES["vocab_size"] - 16


@pytest.mark.parametrize(("limit", "context"), [(64, 64), (100_000, 256)])
def test_a_draft_reads_no_further_than_it_is_asked_to_and_than_it_can(tmp_path: Path, limit: int, context: int) -> None:
    model = ModelConfig(model=str(tiny_model_folder(tmp_path / "target")), dtype="float32")
    speculative = SpeculativeConfig(method="draft_model", layers=1, max_model_len=limit)
    loaded = load_draft(model, speculative, EngineConfig(kv_cache_tokens=1024))
    assert loaded.hello.max_model_len == loaded.limits.max_model_len == context


def test_a_pinned_draft_is_loaded_at_its_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_model_folder(tmp_path / "target")
    asked: list[tuple[str, str | None]] = []

    def snapshot(repository: str, revision: str | None, files: tuple[str, ...], *, offline: bool) -> Path:
        asked.append((repository, revision))
        return target

    monkeypatch.setattr(model_store, "_snapshot", snapshot)
    loaded = load_draft(
        ModelConfig(model=str(target), revision="v1", dtype="float32"),
        SpeculativeConfig(method="draft_model", model="someone/a-draft", revision="v2"),
        EngineConfig(kv_cache_tokens=256),
    )
    assert asked == [("someone/a-draft", "v2")]
    assert loaded.hello.revision == "v2"


def test_a_draft_of_another_target_is_refused(tmp_path: Path) -> None:
    target = tiny_model_folder(tmp_path / "target", LlamaConfig(**{**SIZES, "hidden_size": 96}))
    own = tiny_model_folder(tmp_path / "own")
    draft = draft_folder(tmp_path / "draft", own, LlamaConfig(**SIZES))
    with pytest.raises(ConfigError, match=r"embed_tokens.weight is \[400, 96\]"):
        load_model(draft, dtype="float32", device="cpu", kv_tokens=64, lender=target)


def test_a_map_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    target = tiny_model_folder(tmp_path / "target")
    draft = draft_folder(tmp_path / "draft", target, LlamaConfig(**SIZES))
    tensors = load_file(draft / "model.safetensors")
    save_file({**tensors, "d2t": tensors["d2t"] + 300}, draft / "model.safetensors")
    with pytest.raises(ConfigError, match="'d2t' does not lead to 7 different tokens below 400"):
        load_model(draft, dtype="float32", device="cpu", kv_tokens=64, lender=target)

"""What a local fleet hands to its processes: folders, found as each path names them."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import LlamaConfig

from deploy.local_models import with_local_models
from fleet.config import FleetConfig
from replicas import model_store
from tests.replicas.heads.checkpoints import HIDDEN, VOCABULARY, medusa
from tests.tiny_models import SIZES, tiny_model_folder


def test_target_draft_and_head_are_found_at_the_revisions_that_the_config_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {**SIZES, "hidden_size": HIDDEN, "num_attention_heads": 4, "vocab_size": VOCABULARY}
    model = tiny_model_folder(tmp_path / "model", LlamaConfig(**sizes))
    head = medusa().write(tmp_path / "head")  # pickled, as it was published
    asked: set[tuple[str, str | None]] = set()

    def snapshot(repository: str, revision: str | None, files: tuple[str, ...], *, offline: bool) -> Path:
        asked.add((repository, revision))
        return head if repository == "a/head" else model

    monkeypatch.setattr(model_store, "_snapshot", snapshot)
    draft_model = {"method": "draft_model", "model": "a/draft", "revision": "v2"}
    heads = {"method": "medusa", "model": "a/head", "revision": "v3", "num_speculative_tokens": 3}
    config = FleetConfig.model_validate(
        {
            "model": {"model": "a/target", "revision": "v1"},
            "paths": {
                "baseline": {},
                "draft": {"speculative": draft_model},
                "head": {"speculative": heads},
                "ngram": {"speculative": {"method": "ngram"}},
            },
        }
    )
    resolved = with_local_models(config, lambda line: None)
    assert asked == {("a/target", "v1"), ("a/draft", "v2"), ("a/head", "v3")}
    assert (resolved.model.model, resolved.model.revision) == (str(model), None)
    found = {name: path.speculative.model for name, path in resolved.paths.items() if path.speculative}
    assert found == {"draft": str(model), "head": str(head), "ngram": None}

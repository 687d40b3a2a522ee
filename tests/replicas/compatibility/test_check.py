"""Whole pairs on disk: tokenizers by content, special tokens, templates, vocabularies, contexts, methods."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from fleet.config import FleetConfig, ModelConfig, SpeculativeConfig
from fleet.errors import ConfigError
from replicas import model_store
from replicas.compatibility.check import Pair, check_pair, pair_of, require_pair, require_paths
from replicas.compatibility.findings import Finding, PairReport
from tests.replicas.compatibility import published as p
from tests.tiny import tiny_tokenizer_folder
from tests.tiny_models import SIZES, tiny_model_folder

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("pair") / "target")


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return tiny_model_folder(tmp_path / "draft", LlamaConfig(**(SIZES | {"num_hidden_layers": 1})))


def check(target: Path, draft: Path, method: str = "draft_model", **more: Any) -> PairReport:
    return check_pair(Pair(ModelConfig(model=str(target)), method, str(draft), **more), lambda line: None)


def refused(report: PairReport) -> dict[str, str]:
    return {finding.what: str(finding.problem) for finding in report.findings if not finding.is_ok}


def found(report: PairReport, what: str) -> Finding:
    return next(finding for finding in report.findings if finding.what == what)


def edit_json(file: Path, edit: Edit) -> None:
    value = json.loads(file.read_text())
    edit(value)
    file.write_text(json.dumps(value))


def test_a_draft_of_the_same_family_passes_every_comparison(target: Path, draft: Path) -> None:
    report = check(target, draft)
    assert report.is_ok
    assert [finding.what for finding in report.findings] == [
        "method",
        "architecture",
        "tokenizer",
        "special tokens",
        "chat template",
        "vocabulary",
        "context",
    ]


def test_equal_tokenizers_with_different_padding_are_fine(target: Path, tmp_path: Path) -> None:
    padded = tiny_model_folder(tmp_path / "padded", LlamaConfig(**(SIZES | {"vocab_size": 512})))
    report = check(target, padded)
    assert report.is_ok
    assert found(report, "vocabulary").note == "rows beyond 384 are padding"


def test_equal_sizes_with_different_tokens_are_refused_by_the_first_of_them(target: Path, draft: Path) -> None:
    def swap(tokenizer: dict[str, Any]) -> None:
        vocabulary = tokenizer["model"]["vocab"]
        names = {token_id: token for token, token_id in vocabulary.items()}
        vocabulary[names[300]], vocabulary[names[301]] = 301, 300

    edit_json(draft / "tokenizer.json", swap)
    problem = refused(check(target, draft))["tokenizer"]
    assert "have the same size but different tokens" in problem
    assert "first 300: " in problem


def test_a_tokenizer_of_another_size_is_refused(target: Path, draft: Path) -> None:
    def drop(tokenizer: dict[str, Any]) -> None:
        vocabulary = tokenizer["model"]["vocab"]
        last = max(vocabulary, key=lambda token: vocabulary[token])
        del vocabulary[last]
        tokenizer["model"]["merges"].pop()

    edit_json(draft / "tokenizer.json", drop)
    assert "383 tokens" in refused(check(target, draft))["tokenizer"]


def test_no_common_end_of_text_is_refused_and_a_common_one_is_enough(target: Path, draft: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        edit_json(draft / name, lambda value: value.update(eos_token_id=[2, 0]))
    report = check(target, draft)
    assert report.is_ok
    assert "end on different tokens in part" in str(found(report, "special tokens").note)
    edit_json(draft / "tokenizer_config.json", lambda value: value.update(eos_token="<|endoftext|>"))
    for name in ("config.json", "generation_config.json"):
        edit_json(draft / name, lambda value: value.update(eos_token_id=0))
    assert refused(check(target, draft)) == {"special tokens": "no end-of-text token in common: 2 and 0"}


def test_texts_that_begin_differently_are_refused(target: Path, draft: Path) -> None:
    edit_json(draft / "tokenizer_config.json", lambda value: value.update(bos_token="<|endoftext|>"))
    assert (
        "texts begin with token 1 for the target and 0 for the draft" in refused(check(target, draft))["special tokens"]
    )


def template_of(folder: Path) -> Path:
    return folder / "chat_template.jinja"


def test_another_way_to_write_turns_is_refused(target: Path, draft: Path) -> None:
    file = template_of(draft)
    file.write_text("{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}")
    assert refused(check(target, draft)) == {"chat template": "they write the turns of a conversation differently"}


def test_other_words_before_the_first_turn_are_harmless(target: Path, draft: Path) -> None:
    """Two releases of one family differ in the date or the default system prompt that they begin with."""
    file = template_of(draft)
    file.write_text("{{ 'Today is some day.\n' }}" + file.read_text())
    report = check(target, draft)
    assert report.is_ok
    assert found(report, "chat template").note == "equal turns, different words before the first"


def test_a_draft_without_a_template_needs_none(target: Path, draft: Path) -> None:
    template_of(draft).unlink()
    report = check(target, draft)
    assert report.is_ok
    assert found(report, "chat template").proposer == "none"


def test_a_draft_with_fewer_rows_than_tokens_is_refused(target: Path, tmp_path: Path) -> None:
    short = tiny_model_folder(tmp_path / "short", LlamaConfig(**(SIZES | {"vocab_size": 380})))
    assert "has 380 rows for 384 tokens" in refused(check(target, short))["vocabulary"]


def test_a_short_context_is_said_and_one_without_room_is_refused(target: Path, tmp_path: Path) -> None:
    def with_context(context: int) -> Path:
        sizes = SIZES | {"max_position_embeddings": context}
        return tiny_model_folder(tmp_path / str(context), LlamaConfig(**sizes))

    report = check(target, with_context(64), draft_length=4)
    assert found(report, "context").note == "beyond 64 tokens the target decodes alone"
    assert report.is_ok
    assert "5 tokens leave no room for 4 drafts" in refused(check(target, with_context(5), draft_length=4))["context"]


def test_a_limit_of_the_draft_counts_as_its_context(target: Path, draft: Path) -> None:
    speculative = SpeculativeConfig(method="draft_model", model=str(draft), max_model_len=64)
    report = check_pair(pair_of(ModelConfig(model=str(target)), speculative), lambda line: None)
    assert found(report, "context").note == "beyond 64 tokens the target decodes alone"


def test_a_limit_beyond_the_targets_context_is_refused(target: Path, draft: Path) -> None:
    pair = Pair(ModelConfig(model=str(target), max_model_len=1000), "draft_model", str(draft))
    assert "max_model_len 1000 exceeds" in refused(check_pair(pair, lambda line: None))["context"]


def test_a_draft_that_the_engine_cannot_run_is_refused(target: Path, draft: Path) -> None:
    edit_json(draft / "config.json", lambda value: value.update(model_type="gpt2", n_positions=256))
    assert "architecture 'gpt2' is not supported" in refused(check(target, draft))["architecture"]


def borrowing(draft: Path) -> Path:
    """A draft that stores neither tokenizer nor embedding, as trained ones are."""
    (draft / "tokenizer.json").unlink()
    (draft / "tokenizer_config.json").unlink()
    edit_json(draft / "config.json", lambda config: config.update(shares_target_embedding=True))
    return draft


def test_a_draft_that_borrows_the_targets_embedding_has_its_tokenizer_too(target: Path, draft: Path) -> None:
    report = check(target, borrowing(draft))
    assert report.is_ok
    assert found(report, "embedding").note is not None


def test_a_borrowed_embedding_must_have_the_drafts_sizes(target: Path, tmp_path: Path) -> None:
    wide = tiny_model_folder(tmp_path / "wide", LlamaConfig(**(SIZES | {"hidden_size": 96})))
    assert refused(check(target, borrowing(wide))) == {"embedding": "it was trained to use another embedding"}


@pytest.mark.parametrize(
    ("method", "shapes", "config", "kind"),
    [
        ("draft_model", p.eagle3(), p.EAGLE3_CONFIG, "eagle3"),
        ("eagle", p.eagle3(), p.EAGLE3_CONFIG, "eagle3"),
        ("eagle3", p.eagle(), p.CONFIG, "eagle"),
        ("eagle", p.medusa(), p.MEDUSA_CONFIG, "medusa"),
    ],
)
def test_a_checkpoint_of_another_kind_is_refused_with_the_method_that_fits(
    target: Path, tmp_path: Path, method: str, shapes: p.Shapes, config: dict[str, Any], kind: str
) -> None:
    report = check(target, p.write_head(tmp_path / "head", shapes, config), method)
    assert refused(report) == {"method": f"the checkpoint is of the kind '{kind}'"}
    assert found(report, "method").remedy == f"set method: {kind}"


def test_a_speculator_that_is_not_supported_is_named(target: Path, tmp_path: Path) -> None:
    config = p.SPECULATORS_CONFIG | {"speculators_model_type": "dflash"}
    report = check(target, p.write_head(tmp_path / "head", p.eagle3("layers.0"), config), "eagle3")
    assert refused(report) == {"method": "'dflash' speculators are not supported"}


def test_a_head_is_compared_with_the_real_target_and_its_own_tokenizer(target: Path, tmp_path: Path) -> None:
    folder = p.write_head(tmp_path / "head", p.medusa(), p.MEDUSA_CONFIG)
    assert "hidden size" in refused(check(target, folder, "medusa"))
    tiny_tokenizer_folder(folder)
    edit_json(folder / "tokenizer_config.json", lambda value: value.update(eos_token="<|endoftext|>"))
    assert "special tokens" in refused(check(target, folder, "medusa"))


def test_the_targets_own_layers_need_no_comparison_but_must_exist(target: Path) -> None:
    def layers(count: int) -> PairReport:
        return check_pair(Pair(ModelConfig(model=str(target)), "draft_model", layers=count), lambda line: None)

    assert layers(2).is_ok
    assert found(layers(4), "layers").note == "as slow as the target itself"
    assert refused(layers(5)) == {"layers": "the target has 4 layers"}


def test_lookups_fit_every_target_and_read_nothing() -> None:
    speculative = SpeculativeConfig(method="ngram")
    assert check_pair(pair_of(ModelConfig(model="/nowhere"), speculative), lambda line: None).is_ok


def test_a_refusal_is_one_line_with_what_to_do(target: Path, draft: Path) -> None:
    edit_json(draft / "tokenizer_config.json", lambda value: value.update(bos_token="<|endoftext|>"))
    template_of(draft).write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    pair = pair_of(ModelConfig(model=str(target)), SpeculativeConfig(method="draft_model", model=str(draft)))
    with pytest.raises(
        ConfigError, match=r"cannot propose for .*special tokens: .*; chat template: .*take a draft"
    ) as no:
        require_pair(pair, lambda line: None)
    assert "\n" not in str(no.value)


def test_a_pinned_revision_is_the_one_that_is_compared(
    target: Path, draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = p.write_head(tmp_path / "head", p.medusa(), p.MEDUSA_CONFIG)
    asked: list[tuple[str, str | None]] = []

    def snapshot(repository: str, revision: str | None, files: tuple[str, ...], *, offline: bool) -> Path:
        asked.append((repository, revision))
        return head if "head" in repository else draft

    monkeypatch.setattr(model_store, "_snapshot", snapshot)
    for method, name in (("draft_model", "someone/a-draft"), ("medusa", "someone/a-head")):
        speculative = SpeculativeConfig.model_validate({"method": method, "model": name, "revision": "v2"})
        check_pair(pair_of(ModelConfig(model=str(target)), speculative), lambda line: None)
    assert asked == [("someone/a-draft", "v2"), ("someone/a-head", "v2")]


def test_a_path_says_how_an_eagle3_heads_layer_ids_are_read(target: Path) -> None:
    value = {"method": "eagle3", "model": "head", "eagle_aux_layers": "output"}
    assert pair_of(ModelConfig(), SpeculativeConfig.model_validate(value)).taps_outputs
    assert not pair_of(ModelConfig(), SpeculativeConfig(method="eagle3", model="head")).taps_outputs


def test_a_fleet_names_the_path_of_the_wrong_pair(target: Path) -> None:
    value = {
        "model": {"model": str(target)},
        "paths": {"baseline": {}, "fast": {"speculative": {"method": "draft_model", "layers": 9}}},
    }
    with pytest.raises(
        ConfigError, match=r"^path 'fast': its first 9 layers cannot propose for .*the target has 4 layers"
    ):
        require_paths(FleetConfig.model_validate(value), lambda line: None)
    del value["paths"]["fast"]
    require_paths(FleetConfig.model_validate(value), lambda line: None)

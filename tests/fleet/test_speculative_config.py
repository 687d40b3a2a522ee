"""Speculative settings that cannot work are refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fleet.config import SpeculativeConfig, problems_in
from fleet.vllm_keys import FOREIGN_KEYS


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "eagle", "model": "head"},
        {"method": "eagle3", "model": "head", "tree": [3, 2, 1], "eagle_aux_layers": "output"},
        {"method": "medusa", "model": "head", "tree": [[0], [1], [0, 0]]},
        {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
        {"method": "draft_model", "layers": 2, "acceptance": "rejection"},
        {"method": "medusa", "model": "head", "acceptance": "rejection", "tree": [2, 1]},
        {"method": "draft_model", "model": "draft", "max_model_len": 2048, "draft_tensor_parallel_size": 1},
        {"method": "eagle3", "model": "head", "max_model_len": 2048, "quantization": None, "parallel_drafting": False},
    ],
)
def test_every_proposer_can_be_configured(settings: dict[str, Any]) -> None:
    assert SpeculativeConfig.model_validate(settings).method == settings["method"]


@pytest.mark.parametrize(
    ("settings", "longest"),
    [
        ({"method": "ngram"}, 16),
        ({"method": "suffix"}, 16),
        ({"method": "suffix", "num_speculative_tokens": 3}, 3),
        ({"method": "draft_model", "layers": 2}, 4),
        ({"method": "medusa", "model": "head", "tree": [2, 2]}, 2),
    ],
)
def test_what_is_looked_up_is_longer_than_what_is_drafted_where_nothing_is_said(
    settings: dict[str, Any], longest: int
) -> None:
    assert SpeculativeConfig.model_validate(settings).draft_length == longest


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "eagle"}, "eagle needs 'model'"),
        ({"method": "medusa", "model": "head", "layers": 2}, "medusa needs 'model'"),
        ({"method": "suffix", "model": "head"}, "suffix takes neither"),
        ({"method": "ngram", "tree": [2]}, "ngram drafts no tree"),
        ({"method": "eagle", "model": "head", "tree": [16, 16]}, "more than 256 nodes"),
        ({"method": "eagle", "model": "head", "tree": [2, 0]}, "at least one child"),
        ({"method": "eagle", "model": "head", "tree": []}, "at least 1 item"),
        ({"method": "eagle", "model": "head", "tree": [[0], [1, 0]]}, "no parent"),
        ({"method": "eagle", "model": "head", "tree": [[0], 2]}, "tree"),
        ({"method": "ngram", "max_model_len": 64}, "max_model_len belongs to draft_model, eagle, eagle3"),
        ({"method": "ngram", "acceptance": "rejection"}, "judges drafts of draft_model, eagle"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SpeculativeConfig.model_validate(settings)


def test_a_key_of_vllms_that_is_not_taken_is_refused_with_what_serves_instead() -> None:
    settings = {"method": "ngram", "draft_tensor_parallel_size": 2, "disable_by_batch_size": 32}
    with pytest.raises(ValidationError) as refused:
        SpeculativeConfig.model_validate(settings)
    assert problems_in(refused.value) == [
        "config: draft_tensor_parallel_size: a draft runs on one device; leave it out; "
        "disable_by_batch_size: 'adaptive: true' stops drafting at every load where it does not pay"
    ]


def test_graphs_are_for_target_and_draft_alike() -> None:
    SpeculativeConfig.model_validate({"method": "ngram", "enforce_eager": False})
    with pytest.raises(ValidationError, match="set it in the 'engine' section"):
        SpeculativeConfig.model_validate({"method": "ngram", "enforce_eager": True})


def test_the_documented_table_names_every_key_that_is_taken_and_every_one_that_is_not() -> None:
    text = (Path(__file__).parents[2] / "docs" / "speculative_keys.md").read_text()
    _, taken, own, foreign = text.split("\n## ")
    assert keys_in(taken) | keys_in(own) == set(SpeculativeConfig.model_fields)
    assert keys_in(foreign) == set(FOREIGN_KEYS)


def keys_in(section: str) -> set[str]:
    """The names in the first column of a section's table."""
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}

"""Speculative settings that cannot work are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fleet.config import SpeculativeConfig


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "eagle", "model": "head"},
        {"method": "eagle3", "model": "head", "tree": [3, 2, 1], "eagle_aux_layers": "output"},
        {"method": "medusa", "model": "head", "tree": [[0], [1], [0, 0]]},
        {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
        {"method": "draft_model", "layers": 2, "acceptance": "rejection"},
        {"method": "medusa", "model": "head", "acceptance": "rejection", "tree": [2, 1]},
    ],
)
def test_every_proposer_can_be_configured(settings: dict[str, Any]) -> None:
    assert SpeculativeConfig.model_validate(settings).method == settings["method"]


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
        ({"method": "ngram", "acceptance": "rejection"}, "judges drafts of draft_model, eagle"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SpeculativeConfig.model_validate(settings)

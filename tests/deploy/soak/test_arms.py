"""Every proposer is soaked, and one that was not trained is left out aloud."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from deploy.bench.soak.arms import soak_arms
from fleet.config import SpeculativeConfig

MODELS = Path("deploy/models")


def test_every_method_is_soaked_and_every_rule_and_a_tree_and_a_draft_that_is_killed() -> None:
    arms = soak_arms(MODELS, lambda line: None)
    methods = set(get_args(SpeculativeConfig.model_fields["method"].annotation))
    assert {arm.speculative.method for arm in arms} == methods
    assert {arm.speculative.acceptance for arm in arms} == {"coupled", "rejection"}
    assert any(arm.speculative.tree for arm in arms)
    assert any(arm.speculative.draft_ahead for arm in arms)
    assert [arm.name for arm in arms if arm.kills_draft] == ["draft_model, killed"]
    assert not any(arm.speculative.adaptive for arm in arms), "a poor draft would be switched off"


def test_what_was_not_trained_is_left_out_with_a_line(tmp_path: Path) -> None:
    said: list[str] = []
    arms = soak_arms(tmp_path, said.append)
    assert [arm.name for arm in arms] == ["ngram", "suffix"]
    assert len(said) == 5
    assert said[0].startswith("draft_model, ahead, rejection is left out: there is no")

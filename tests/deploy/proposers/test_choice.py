"""Which arms the command line names."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.bench.proposers.choice import EVERY, USELESS, arms_of
from deploy.bench.proposers.plan import BASELINE
from fleet.config import HEAD_METHODS, JUDGED_METHODS, LOOKUP_DRAFT_TOKENS, LOOKUP_METHODS
from fleet.errors import ConfigError


def test_trained_proposers_that_are_not_there_are_left_out_with_a_line(tmp_path: Path):
    (tmp_path / "eagle3").mkdir()
    (tmp_path / "draft").mkdir()
    said: list[str] = []
    arms = arms_of(EVERY, tmp_path, 3, [], said.append)
    assert [arm.name for arm in arms] == [
        BASELINE, "draft_model", "eagle3", "ngram", "suffix", "draft_model/rejection", "eagle3/rejection",
        "eagle3/tree", USELESS,
    ]  # fmt: skip
    assert [line.partition(" ")[0] for line in said] == [
        "eagle", "medusa", "eagle/rejection", "medusa/rejection", "eagle/tree", "medusa/tree",
    ]  # fmt: skip
    by_name = {arm.name: arm for arm in arms}
    draft, rule, useless = (by_name[name] for name in ("draft_model", "eagle3/rejection", USELESS))
    assert draft.speculative is not None
    assert draft.speculative.model == str(tmp_path / "draft")
    assert rule.speculative is not None
    assert rule.speculative.acceptance == "rejection"
    assert useless.drill is not None
    assert useless.drill.useless_draft
    lengths = {arm.name: arm.speculative.draft_length for arm in arms if arm.speculative}
    lookups = {name: lengths.pop(name) for name in LOOKUP_METHODS}
    assert set(lengths.values()) == {3}
    assert set(lookups.values()) == {LOOKUP_DRAFT_TOKENS}, "looking further costs nothing"


def test_every_method_that_can_be_judged_and_a_tree_of_every_head_are_among_the_usual_arms(tmp_path: Path):
    for method in ("draft", *HEAD_METHODS):
        (tmp_path / method).mkdir()
    arms = {arm.name: arm.speculative for arm in arms_of(EVERY, tmp_path, 4, [], print)}
    assert arms.keys() == {BASELINE, *EVERY}
    judged = {name for name, found in arms.items() if found and found.acceptance == "rejection"}
    assert judged == {f"{method}/rejection" for method in JUDGED_METHODS}
    trees = {name: found for name, found in arms.items() if found and found.tree}
    assert trees.keys() == {f"{method}/tree" for method in HEAD_METHODS}
    assert {found.draft_length for found in trees.values()} == {4}, "as deep as a chain is long"


@pytest.mark.parametrize(("tokens", "tree"), [(1, (2,)), (3, (2, 2, 1)), (6, (2, 2, 1, 1, 1, 1))])
def test_a_tree_is_as_deep_as_the_longest_draft(tmp_path: Path, tokens: int, tree: tuple[int, ...]):
    (tmp_path / "eagle").mkdir()
    speculative = arms_of(["eagle/tree"], tmp_path, tokens, [], print)[1].speculative
    assert speculative is not None
    assert speculative.tree == tree


def test_suffix_decoding_knows_no_answer_from_another_cell(tmp_path: Path):
    arm = arms_of(["suffix"], tmp_path, 4, [], print)[1]
    assert arm.speculative is not None
    assert arm.speculative.suffix_decoding_max_cached_requests == 0


def test_any_settings_can_be_named_as_json(tmp_path: Path):
    arm = arms_of([], tmp_path, 4, ['half={"method": "draft_model", "layers": 15}'], print)[1]
    assert (arm.name, arm.speculative and arm.speculative.layers) == ("half", 15)


@pytest.mark.parametrize(
    ("names", "extra", "message"),
    [
        (["eagel"], [], "unknown proposer 'eagel'; there are draft_model, eagle"),
        ([], ["half"], "an arm is written NAME=JSON"),
        ([], ['half={"method": "draft_model"}'], "arm 'half': .*exactly one of 'model' and 'layers'"),
        ([], ["half={"], "arm 'half'"),
        (["ngram", "ngram"], [], "two arms have the same name"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, names: list[str], extra: list[str], message: str):
    with pytest.raises(ConfigError, match=message) as raised:
        arms_of(names, tmp_path, 4, extra, print)
    assert "\n" not in str(raised.value)


def test_an_arm_may_name_the_prompts_that_it_is_measured_on(tmp_path: Path):
    _, ngram, suffix, useless = arms_of(
        ["ngram", "suffix@chat", f"{USELESS}@chat+code"], tmp_path, 3, [], lambda line: None
    )
    assert (ngram.name, ngram.categories) == ("ngram", ())
    assert (suffix.name, suffix.categories) == ("suffix", ("chat",))
    assert (useless.name, useless.categories) == (USELESS, ("chat", "code"))

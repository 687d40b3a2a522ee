"""The order of the blocks, and which prompts they ask."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deploy.bench.prompts import Prompt
from deploy.bench.proposers.plan import BASELINE, Arm, Cell, Place, places, prompts_of
from fleet.config import SpeculativeConfig
from fleet.errors import ConfigError

NGRAM = Arm("ngram", SpeculativeConfig(method="ngram"))
SUFFIX = Arm("suffix", SpeculativeConfig(method="suffix"))
CELL = Cell(0.0, 1, "chat")


def test_every_round_lies_between_two_blocks_of_the_baseline_and_every_second_one_runs_backwards():
    order = [place.arm.name for place in places([Arm(BASELINE), NGRAM, SUFFIX], [CELL], 4)]
    assert order == [
        *(BASELINE, "ngram", "suffix", BASELINE),
        *(BASELINE, "suffix", "ngram", BASELINE),
        *(BASELINE, "suffix", "ngram", BASELINE),  # the next pair begins with another arm
        *(BASELINE, "ngram", "suffix", BASELINE),
    ]


def test_no_two_blocks_are_the_same_place():
    found = list(places([Arm(BASELINE), NGRAM, SUFFIX], [CELL], 3))
    assert len({(place.round, place.arm.name, place.is_last) for place in found}) == len(found)
    assert [place.is_last for place in found if place.arm.name == BASELINE] == [False, True] * 3


def test_whole_rounds_come_first_so_that_a_stopped_run_covers_every_cell():
    cells = [CELL, Cell(0.0, 8, "chat")]
    found = dict.fromkeys((place.round, place.cell) for place in places([Arm(BASELINE)], cells, 3))
    assert list(found) == [(round_, cell) for round_ in range(3) for cell in cells]


def test_an_arm_is_measured_on_the_categories_that_it_names():
    arms = [Arm(BASELINE), NGRAM, replace(SUFFIX, categories=("code", "chat"))]
    cells = [Cell(0.0, 1, category) for category in ("chat", "code", "summarization")]
    found = [place.cell.category for place in places(arms, cells, 1) if place.arm.name == "suffix"]
    assert found == ["chat", "code"]


def test_the_rejection_rule_is_measured_only_where_something_is_drawn():
    rule = SpeculativeConfig(method="eagle", model="x", acceptance="rejection")
    arms = [Arm(BASELINE), Arm("eagle/rejection", rule)]
    cells = [CELL, Cell(0.8, 1, "chat")]
    found = [(place.cell.temperature, place.arm.name) for place in places(arms, cells, 1) if not place.is_last]
    assert found == [(0.0, BASELINE), (0.8, BASELINE), (0.8, "eagle/rejection")]


def test_rounds_ask_different_prompts_of_the_category_and_begin_again_when_there_are_no_more():
    prompts = [Prompt(f"{category}-{n}", category, ("?",)) for n in range(3) for category in ("chat", "code")]
    asked = [[prompt.id for prompt in prompts_of(prompts, Place(round_, CELL, NGRAM), 2)] for round_ in range(2)]
    assert asked == [["chat-0", "chat-1"], ["chat-2", "chat-0"]]


def test_a_category_without_prompts_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match="no prompts of the category 'chat'; there are code"):
        prompts_of([Prompt("a", "code", ("?",))], Place(0, CELL, NGRAM), 1)

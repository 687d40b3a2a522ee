"""The order of the blocks, and which prompts they ask."""

from __future__ import annotations

import pytest

from deploy.bench.prompts import Prompt
from deploy.bench.proposers.plan import BASELINE, Arm, Cell, Place, places, prompts_of
from fleet.config import SpeculativeConfig
from fleet.errors import ConfigError

NGRAM = Arm("ngram", SpeculativeConfig(method="ngram"))
SUFFIX = Arm("suffix", SpeculativeConfig(method="suffix"))
CELL = Cell(0.0, 1, "chat")


def test_every_pair_of_arms_is_measured_a_b_b_a():
    arms = [Arm(BASELINE), NGRAM, SUFFIX]
    order = [place.arm.name for place in places(arms, [CELL], 4)]
    for pair in (order[:6], order[6:]):
        assert pair == pair[::-1]
        assert sorted(pair) == sorted(2 * [arm.name for arm in arms])
    assert order[0] != order[6], "the next pair of rounds begins with another arm"


def test_whole_rounds_come_first_so_that_a_stopped_run_covers_every_cell():
    cells = [CELL, Cell(0.0, 8, "chat")]
    found = [(place.round, place.cell) for place in places([Arm(BASELINE)], cells, 3)]
    assert found == [(round_, cell) for round_ in range(3) for cell in cells]


def test_the_rejection_rule_is_measured_only_where_something_is_drawn():
    rule = SpeculativeConfig(method="eagle", model="x", acceptance="rejection")
    arms = [Arm(BASELINE), Arm("eagle/rejection", rule)]
    cells = [CELL, Cell(0.8, 1, "chat")]
    found = [(place.cell.temperature, place.arm.name) for place in places(arms, cells, 1)]
    assert found == [(0.0, BASELINE), (0.8, BASELINE), (0.8, "eagle/rejection")]


def test_rounds_ask_different_prompts_of_the_category_and_begin_again_when_there_are_no_more():
    prompts = [Prompt(f"{category}-{n}", category, ("?",)) for n in range(3) for category in ("chat", "code")]
    asked = [[prompt.id for prompt in prompts_of(prompts, Place(round_, CELL, NGRAM), 2)] for round_ in range(2)]
    assert asked == [["chat-0", "chat-1"], ["chat-2", "chat-0"]]


def test_a_category_without_prompts_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match="no prompts of the category 'chat'; there are code"):
        prompts_of([Prompt("a", "code", ("?",))], Place(0, CELL, NGRAM), 1)

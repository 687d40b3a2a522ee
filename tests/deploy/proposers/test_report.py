"""From blocks to tables, and blocks that survive a stop."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.bench.proposers.block import Measured
from deploy.bench.proposers.plan import BASELINE, Arm, Cell, Place
from deploy.bench.proposers.probe import Notes
from deploy.bench.proposers.report import accepted_length, log_gains, pooled, tables
from deploy.bench.proposers.run_file import RunFile
from fleet.errors import ConfigError

CELL = Cell(0.0, 1, "chat")
ARMS = {BASELINE: None, "ngram": {"method": "ngram"}}


def notes_of(*rounds: tuple[int, int]) -> Notes:
    notes = Notes()
    for depth, accepted in rounds:
        notes.note_round(depth, accepted)
    return notes


def block(round_: int, arm: str, seconds: float, cell: Cell = CELL, notes: Notes | None = None) -> Measured:
    return Measured(round_, cell, arm, 100, seconds, notes or Notes())


def test_rounds_are_counted_by_position_of_the_drafts_that_reached_it():
    notes = notes_of((4, 4), (4, 1), (1, 0), (0, 0))
    assert (notes.rounds, notes.drafted, notes.accepted) == (4, [3, 2, 2, 2], [2, 1, 1, 1])
    assert accepted_length(notes) == pytest.approx(1 + 5 / 3)
    assert accepted_length(notes_of((0, 0))) is None


def test_pooled_notes_are_those_of_all_rounds_together():
    one, other = [(4, 2), (0, 0)], [(2, 2), (6, 5)]
    assert pooled([notes_of(*one), notes_of(*other)]) == notes_of(*one, *other)


def test_gains_are_paired_by_round_and_rounds_of_one_arm_alone_do_not_count():
    blocks = [block(0, BASELINE, 4.0), block(0, "ngram", 2.0), block(1, BASELINE, 3.0), block(2, "ngram", 1.0)]
    assert log_gains(blocks, "ngram") == [pytest.approx(math.log(2.0))]


def test_an_arm_is_held_against_the_geometric_mean_of_the_baselines_around_it():
    around = [block(0, BASELINE, 4.0), replace(block(0, BASELINE, 1.0), is_last=True), block(0, "ngram", 1.0)]
    assert log_gains(around, "ngram") == [pytest.approx(math.log(2.0))]


def test_a_block_that_was_over_before_it_began_has_no_rate():
    nothing = replace(block(0, "ngram", 0.0), tokens=0)
    assert log_gains([block(0, BASELINE, 4.0), nothing], "ngram") == []
    assert any("| ngram | chat | – | – |" in line for line in tables([block(0, BASELINE, 4.0), nothing]))


def test_a_table_shows_the_interval_only_where_there_are_rounds_enough():
    rounds = [block(n, BASELINE, 4.0) for n in range(6)]
    rounds += [block(n, "ngram", 2.0 + 0.1 * n, notes=notes_of((2, 1), (0, 0))) for n in range(6)]
    rounds += [block(0, "eagle", 1.0)]
    lines = list(tables(rounds))
    assert "**Temperature 0, 1 request**" in lines
    fastest, baseline, ngram, eagle = (line for line in lines if "| chat |" in line)
    assert fastest.startswith("| 0 | 1 | chat | ngram | **1.78** (")
    assert baseline.startswith("| baseline | chat | 1 | 25.0 |")
    assert "4.00 (1 of 5 rounds)" in eagle
    estimate, low, high = (float(part) for part in ngram.replace("*", "").split("|")[3].replace("(", " ").replace(
        ")", " ").replace("–", " ").split())  # fmt: skip
    assert low < estimate < high
    assert "| 2.00 | 1.00 0.00 |" in ngram


def test_what_a_head_reads_is_shown_beside_what_it_drafts_and_by_its_own_steps():
    times = Notes(asked_steps=2, draft_seconds=0.010, read_steps=5, read_seconds=0.100)
    rounds = [block(0, BASELINE, 4.0), block(0, "eagle", 4.0, notes=pooled([times, times]))]
    head = next(line for line in tables(rounds) if line.startswith("| eagle |"))
    baseline = next(line for line in tables(rounds) if line.startswith("| baseline |"))
    assert head.split("|")[7:9] == [" 5.0 ", " 20.0 "]
    assert baseline.split("|")[7:9] == [" – ", " – "]


def test_a_stopped_run_goes_on_and_a_line_that_was_cut_off_is_measured_again(tmp_path: Path):
    path = tmp_path / "deep" / "run.jsonl"
    file = RunFile(path, {"tokens": 8}, ARMS)
    measured = block(0, "ngram", 2.0, notes=notes_of((2, 1)))
    file.append(measured)
    file.append(block(1, "ngram", 3.0))
    path.write_text(path.read_text()[:-9])
    again = RunFile(path, {"tokens": 8}, ARMS)
    assert again.blocks == [measured]
    assert again.has(Place(0, CELL, Arm("ngram")))
    assert not again.has(Place(0, CELL, Arm("ngram"), is_last=True))
    assert not again.has(Place(1, CELL, Arm("ngram")))
    again.append(block(1, "ngram", 3.0))
    assert len(RunFile(path, {"tokens": 8}, ARMS).blocks) == 2


def test_a_run_of_other_settings_is_not_continued(tmp_path: Path):
    RunFile(tmp_path / "run.jsonl", {"tokens": 8}, ARMS)
    with pytest.raises(ConfigError, match="other settings: take another --results"):
        RunFile(tmp_path / "run.jsonl", {"tokens": 9}, ARMS)
    (tmp_path / "run.jsonl").write_text('{"tokens": 8}\n{"round": "x"}\n')
    with pytest.raises(ConfigError, match="cannot be read"):
        RunFile(tmp_path / "run.jsonl", {"tokens": 8}, ARMS)


def test_further_arms_and_cells_may_be_added_but_none_may_change(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    RunFile(path, {"tokens": 8}, ARMS).append(block(0, "ngram", 2.0))
    more = {BASELINE: None, "suffix": {"method": "suffix"}}
    RunFile(path, {"tokens": 8}, more).append(block(0, "suffix", 2.0, cell=Cell(0.8, 4, "code")))
    assert [each.arm for each in RunFile(path, {"tokens": 8}, ARMS | more).blocks] == ["ngram", "suffix"]
    with pytest.raises(ConfigError, match="has suffix with other settings: take another --results"):
        RunFile(path, {"tokens": 8}, {"suffix": {"method": "suffix", "suffix_decoding_min_token_prob": 0.5}})

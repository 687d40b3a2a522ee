from dataclasses import replace
from pathlib import Path

import pytest

from deploy.evidence.levels import Probed
from deploy.evidence.measured import MeasuredBlock, MeasuredRequest, ServerFigures
from deploy.evidence.run import seconds_left
from deploy.evidence.run_file import SCHEMA, Header, RunFile
from fleet.errors import ConfigError
from fleet.traffic import Outcome

HEADER = Header(SCHEMA, 1.0, {"rounds": 3}, "tiny", "digest")
REQUEST = MeasuredRequest(
    index=0,
    category="chat",
    outcome=Outcome.DONE,
    send_delay=0.001,
    chunks=((0.1, 1), (0.15, 3)),
    prompt_tokens=5,
    drafted=4,
    accepted=2,
    rounds_by_accepted=(0, 0, 1),
    queue_seconds=None,
    fallbacks=0,
    answer_digest="ab",
    is_degenerate=False,
)
BLOCK = MeasuredBlock(
    condition="c1/greedy",
    round=0,
    arm="baseline",
    seconds=3.0,
    window_seconds=2.0,
    window_tokens=40,
    window_completed=2,
    client_lag=0.001,
    server=ServerFigures(kv_usage=0.5),
    requests=(REQUEST,),
)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.jsonl"
    file = RunFile.open(path, HEADER)
    file.add_probe(Probed(4, 123.5, 0.02))
    file.add_block(BLOCK)
    again = RunFile.open(path, replace(HEADER, created=99.0))
    assert again.blocks == [BLOCK]
    assert again.probes == [Probed(4, 123.5, 0.02)]
    assert again.header == HEADER


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_line_that_a_kill_cut_off_is_dropped_and_the_file_goes_on(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "run.jsonl"
    file = RunFile.open(path, HEADER)
    file.add_block(BLOCK)
    file.add_block(replace(BLOCK, arm="speculative"))
    path.write_bytes(path.read_bytes()[:-cut])
    again = RunFile.open(path, HEADER)
    assert again.blocks == [BLOCK]
    again.add_block(replace(BLOCK, round=1))
    assert [block.round for block in RunFile.open(path, HEADER).blocks] == [0, 1]


@pytest.mark.parametrize(
    "other",
    [replace(HEADER, model="big"), replace(HEADER, config={"rounds": 4}), replace(HEADER, inputs_digest="other")],
)
def test_the_measurements_of_another_matrix_are_never_mixed_in(tmp_path: Path, other: Header) -> None:
    path = tmp_path / "run.jsonl"
    RunFile.open(path, HEADER)
    with pytest.raises(ConfigError, match="another matrix's measurements"):
        RunFile.open(path, other)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("hello\n")
    with pytest.raises(ConfigError, match=r"run\.jsonl:1 is not a line of a run"):
        RunFile.open(path, HEADER)


def test_only_rounds_that_every_arm_has_run_count_and_the_latest_of_each(tmp_path: Path) -> None:
    file = RunFile.open(tmp_path / "run.jsonl", HEADER)
    later = replace(BLOCK, window_tokens=50)
    for block in (BLOCK, later, replace(BLOCK, arm="speculative"), replace(BLOCK, round=1)):
        file.add_block(block)
    assert file.whole_rounds(["baseline", "speculative"]) == [later, replace(BLOCK, arm="speculative")]


def test_the_time_left_is_what_the_same_conditions_took(tmp_path: Path) -> None:
    file = RunFile.open(tmp_path / "run.jsonl", HEADER)
    assert seconds_left(["c1/greedy"], file) is None
    file.add_block(BLOCK)
    file.add_block(replace(BLOCK, condition="c8/greedy", seconds=9.0))
    assert seconds_left(["c1/greedy", "c8/greedy", "never seen"], file) == pytest.approx(3.0 + 9.0 + 6.0)


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        RunFile.open(tmp_path / "file" / "run.jsonl", HEADER)

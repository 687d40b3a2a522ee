from pathlib import Path

import pytest

from deploy.bench.agreement import Comparison, render
from deploy.bench.other_tools import AIPERF, GUIDELLM, VLLM_BENCH, LoadTool, ToolLoad


def test_a_row_shows_the_mean_and_both_ends_of_the_repetitions_and_how_far_apart_the_two_are() -> None:
    runs = [
        Comparison("steady", "tool", {"ITL": 22.0}, {"ITL": 20.0}),
        Comparison("steady", "tool", {"ITL": 20.0}, {"ITL": 19.0}),
        Comparison("bursts", "tool", {"ITL": 9.0}, {"ITL": 10.0}),
    ]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in render(runs).splitlines()]
    assert rows[0] == ["pace", "tool", "figure", "tool, ms", "router, ms", "ratio"]
    assert rows[2:] == [
        ["steady", "tool", "ITL", "21.0 (20.0 – 22.0)", "19.5 (19.0 – 20.0)", "1.077"],
        ["bursts", "tool", "ITL", "9.0 (9.0 – 9.0)", "10.0 (10.0 – 10.0)", "0.900"],
    ]


@pytest.mark.parametrize("tool", [VLLM_BENCH, GUIDELLM, AIPERF])
def test_every_tool_is_told_the_whole_load(tool: LoadTool, tmp_path: Path) -> None:
    load = ToolLoad("http://router", "m", Path("/tokenizer"), 111, 222, 333, 444, tmp_path)
    told = " ".join(tool.command(load, "/v1/chat/completions"))
    for part in ("http://router", "/tokenizer", "111", "222", "333", "444", str(tmp_path)):
        assert part in told

import json
from pathlib import Path

import pytest

from deploy.evidence.samples import filler_samples, load_samples
from deploy.evidence.traces import TraceRow, load_trace
from fleet.errors import ConfigError


def written(tmp_path: Path, content: str, name: str = "input") -> Path:
    file = tmp_path / name
    file.write_text(content)
    return file


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
BURST_GPT = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,,1.5,ChatGPT,472,18,490,Conversation log
45,,1.5,ChatGPT,1087,0,1087,Conversation log
118,,2.5,GPT-4,417,276,693,Conversation log
"""
MOONCAKE = """{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}
{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46]}
"""


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (AZURE, [(0.0, 374, 44), (4.314579, 396, 109)]),
        (BURST_GPT, [(0.0, 472, 18), (113.0, 417, 276)]),
        (MOONCAKE, [(0.0, 6955, 52), (3.053, 6472, 26)]),
    ],
)
def test_a_public_trace_is_read_by_the_names_of_its_columns(
    tmp_path: Path, content: str, rows: list[tuple[float, int, int]]
) -> None:
    trace = load_trace(written(tmp_path, content))
    assert [row.at_seconds for row in trace.rows] == pytest.approx([at for at, _, _ in rows])
    assert [(row.prompt_tokens, row.output_tokens) for row in trace.rows] == [row[1:] for row in rows]
    assert trace.rows[0] == TraceRow(*rows[0])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("a,b\n1,2\n", "no Azure, BurstGPT or Mooncake trace"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", ":2: not a request"),
        ('{"timestamp": 1}\n', ":1: not a request"),
        (AZURE[: AZURE.rindex("2023")], "less than two requests"),
        ("", "no Azure"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_line(tmp_path: Path, content: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_trace(written(tmp_path, content))


def test_filler_has_about_the_lengths_of_the_trace_and_no_content_to_judge(tmp_path: Path) -> None:
    samples = filler_samples(load_trace(written(tmp_path, MOONCAKE)), max_prompt_tokens=400)
    assert not samples.has_content
    first, second = samples.items
    assert len(first.messages[0]["content"].split()) == 300
    assert (first.max_tokens, second.max_tokens) == (52, 26)
    assert first.messages != second.messages


SHARE_GPT = [
    {"id": "a", "conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]},
    {"id": "b", "conversations": [{"from": "gpt", "value": "An answer to nothing"}]},
]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"question_id": 81, "category": "writing", "turns": ["One", "Two"]}\n', [("81", "writing", "One")]),
        (json.dumps(SHARE_GPT), [("a", "sharegpt", "Why?")]),
        ("\n".join(map(json.dumps, SHARE_GPT)), [("a", "sharegpt", "Why?")]),
        (
            "First question\n\nSecond question\n",
            [("line-1", "plain", "First question"), ("line-3", "plain", "Second question")],
        ),
        (
            '{"id": "r1", "category": "short", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}',
            [("r1", "short", "Hi")],
        ),
    ],
)
def test_prompts_are_read_in_every_format(tmp_path: Path, content: str, expected: list[tuple[str, str, str]]) -> None:
    samples = load_samples(written(tmp_path, content))
    assert samples.has_content
    assert [(item.id, item.category, item.messages[0]["content"]) for item in samples.items] == expected


def test_a_captured_request_keeps_its_limit_and_without_a_file_the_shipped_prompts_are_asked(tmp_path: Path) -> None:
    captured = written(tmp_path, '{"id": "r1", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}')
    assert load_samples(captured).items[0].max_tokens == 5
    assert len(load_samples(None).items) >= 100


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "holds no prompts"),
        ('{"id": "r1", "messages": []}', ":1: messages"),
        ('{"conversations": [], "id": 1}\n{"conversations": [{"from": "nobody", "value": ""}], "id": 2}', ":2: "),
        ("[1]", ":1: expected an object"),
        ("{broken", "neither JSON lines nor"),
    ],
)
def test_what_holds_no_prompts_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_samples(written(tmp_path, content))

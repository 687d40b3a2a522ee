from collections import Counter
from pathlib import Path

import pytest

from deploy.bench.prompts import load_prompts
from fleet.errors import ConfigError


def test_the_shipped_prompts_cover_every_category_with_distinct_ids_and_texts() -> None:
    prompts = load_prompts()
    categories = Counter(prompt.category for prompt in prompts)
    assert set(categories) == {"chat", "code", "summarization", "extraction", "translation", "reasoning"}
    assert min(categories.values()) >= 15
    assert len({prompt.id for prompt in prompts}) == len(prompts) >= 100
    assert len({prompt.turns for prompt in prompts}) == len(prompts)


def test_the_shipped_prompts_vary_in_length_and_in_turns() -> None:
    prompts = load_prompts()
    lengths = sorted(len(prompt.turns[0]) for prompt in prompts)
    assert lengths[0] < 80
    assert lengths[-1] > 15 * lengths[0]
    assert {len(prompt.turns) for prompt in prompts} == {1, 2, 3}
    assert all(turn.strip() == turn and turn for prompt in prompts for turn in prompt.turns)


def test_a_spec_bench_file_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "question.jsonl"
    file.write_text('{"question_id": 81, "category": "writing", "turns": ["One", "Two"], "reference": []}\n\n')
    (prompt,) = load_prompts(file)
    assert (prompt.id, prompt.category, prompt.turns) == ("81", "writing", ("One", "Two"))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "no prompts"),
        ('{"id": 1, "category": "a", "turns": ["x"]}\n{"id": 2, "category": "a"}', "2: turns"),
        ('{"id": 1, "category": "a", "turns": []}', "1: turns"),
        ("not json", "1:"),
    ],
)
def test_an_unusable_file_is_refused_with_the_line_that_is_wrong(tmp_path: Path, content: str, complaint: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    with pytest.raises(ConfigError, match=complaint):
        load_prompts(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        load_prompts(tmp_path / "absent.jsonl")

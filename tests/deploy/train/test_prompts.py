"""Prompt files and the split into what is learnt and what is only measured on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.train.prompts import Conversation, read_prompts, split
from fleet.errors import ConfigError


def test_json_lines_hold_a_prompt_or_turns_or_messages(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": "a", "category": "other keys are nobody's business"},
        {"turns": ["b", "c"]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "d"}]},
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert list(read_prompts(file)) == [
        Conversation((), ("a",)),
        Conversation((), ("b", "c")),
        Conversation((("system", "s"),), ("d",)),
    ]


def test_an_answer_that_comes_with_the_data_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    roles = ("user", "assistant", "user", "assistant")
    file.write_text(json.dumps({"messages": [{"role": role, "content": str(i)} for i, role in enumerate(roles)]}))
    assert list(read_prompts(file)) == [Conversation((("user", "0"), ("assistant", "1")), ("2",))]


def test_other_text_has_a_prompt_on_each_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\n  two {\n")
    assert [conversation.turns for conversation in read_prompts(file)] == [("one",), ("two {",)]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"prompt": "a", "turns": ["b"]}', "exactly one of 'prompt', 'messages' and 'turns'"),
        ('{"text": "a"}', "exactly one of"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "no user turn"),
        ('{"messages": [{"role": "wizard", "content": "a"}]}', "messages.0.role"),
        ("{", "Invalid JSON"),
    ],
)
def test_an_unusable_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'{{"prompt": "fine"}}\n{line}\n')
    with pytest.raises(ConfigError, match=complaint) as raised:
        list(read_prompts(file))
    assert f"{file}:2" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read prompts"):
        list(read_prompts(tmp_path / "nothing.txt"))


def test_about_the_wanted_share_is_held_out_and_always_the_same() -> None:
    conversations = [Conversation((), (f"prompt {index}",)) for index in range(1000)]
    first = split(conversations, [], 0.1)
    again = split(conversations[::-1], [], 0.1)
    held_out = {talk.turns for talk in first if talk.is_held_out}
    assert held_out == {talk.turns for talk in again if talk.is_held_out}
    assert 60 < len(held_out) < 140


def test_what_is_only_measured_on_is_never_learnt_even_if_it_is_among_the_prompts() -> None:
    shared = Conversation((), ("shared",))
    found = split([shared, Conversation((), ("other",)), shared], [shared], 0.0)
    assert {talk.turns[0]: talk.is_held_out for talk in found} == {"shared": True, "other": False}
    assert len(found) == 2


def test_conversations_with_the_same_beginning_are_not_split() -> None:
    found = split([Conversation((), ("a", "b")), Conversation((), ("a", "c"))], [], 0.5)
    assert len(found) == 1

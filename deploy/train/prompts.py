"""What is the target asked? Conversations from prompt files, and which of them are only measured on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fleet.config import explain
from fleet.errors import ConfigError

JSON_LINES = (".jsonl", ".ndjson", ".json")
Message = tuple[str, str]
"""Role and content."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages that are given, then user turns, each to be answered with all before it in view."""

    given: tuple[Message, ...]
    turns: tuple[str, ...]
    is_held_out: bool = False

    @property
    def digest(self) -> bytes:
        """32 bytes by what precedes the first answer, so that variants of one conversation are never split."""
        return hashlib.sha256(json.dumps([self.given, self.turns[:1]]).encode()).digest()


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "user", "assistant"]
    content: str


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore")

    prompt: str | None = Field(None, min_length=1)
    messages: list[_Message] | None = Field(None, min_length=1)
    turns: list[str] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _asks_one_thing(self) -> _Line:
        if sum(value is not None for value in (self.prompt, self.messages, self.turns)) != 1:
            raise ValueError("needs exactly one of 'prompt', 'messages' and 'turns'")
        if self.messages is not None and not any(message.role == "user" for message in self.messages):
            raise ValueError("'messages' has no user turn")
        return self

    def conversation(self) -> Conversation:
        if self.messages is None:
            return Conversation((), tuple(self.turns or [self.prompt or ""]))
        messages = [(message.role, message.content) for message in self.messages]
        while messages[-1][0] != "user":  # an answer that comes with the data set is not the target's
            messages.pop()
        return Conversation(tuple(messages[:-1]), (messages[-1][1],))


def read_prompts(file: Path) -> Iterator[Conversation]:
    """The conversations of a `.jsonl` file, or of any other text file one a line.

    Raises ConfigError with the line that is unusable, or where the file cannot be read.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read prompts from {file}: {error}") from error
    is_json = file.suffix in JSON_LINES
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _parse(line, f"{file}:{number}") if is_json else Conversation((), (line.strip(),))


def split(
    conversations: Iterable[Conversation], measured: Iterable[Conversation], held_out: float
) -> list[Conversation]:
    """All different conversations in a fixed order; `measured` and a share by hash of the others are held out."""
    found = {conversation.digest: _marked(conversation, True) for conversation in measured}
    for conversation in conversations:
        share = int.from_bytes(conversation.digest[:8]) / 2**64
        found.setdefault(conversation.digest, _marked(conversation, share < held_out))
    return list(found.values())


def _marked(conversation: Conversation, is_held_out: bool) -> Conversation:
    return Conversation(conversation.given, conversation.turns, is_held_out)


def _parse(line: str, where: str) -> Conversation:
    try:
        return _Line.model_validate_json(line).conversation()
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error)}") from error

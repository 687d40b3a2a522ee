"""What is asked: prompts, ShareGPT conversations and captured requests, all read into one form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, Field, ValidationError

from deploy.bench.prompts import SHIPPED_PROMPTS, load_prompts
from deploy.evidence.capture.sealed import opened
from deploy.evidence.traces import Trace
from fleet.config import explain
from fleet.errors import ConfigError

FILLER_WORDS_PER_TOKEN = 0.75


@dataclass(frozen=True, slots=True)
class Sample:
    """One request to repeat: the chat up to the message that is to be answered."""

    id: str
    category: str
    messages: tuple[Mapping[str, Any], ...]
    max_tokens: int | None = None
    """The request's own limit, where it is known."""
    weight: float = 1.0
    """How often it is asked, beside the others."""
    is_greedy: bool | None = None
    """How it was asked, where that is known: a sampling mode is measured with its own requests, if it has any."""


@dataclass(frozen=True, slots=True)
class Samples:
    """All that a matrix may ask."""

    items: tuple[Sample, ...]
    has_content: bool = True
    """False for filler made to the lengths of a trace: it shapes load, but what is accepted of a draft depends on
    the text, so it cannot say whether speculation pays."""


class _ShareGptMessage(BaseModel):
    role: Literal["human", "user", "gpt", "chatgpt", "assistant", "bing", "bard", "system"] = Field(
        validation_alias=AliasChoices("from", "role")
    )
    value: str = Field(validation_alias=AliasChoices("value", "content"))


class _ShareGpt(BaseModel):
    id: str | int
    conversations: list[_ShareGptMessage]


class _Captured(BaseModel):
    id: str
    category: str = "captured"
    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    weight: float = Field(1.0, gt=0, allow_inf_nan=False)
    sampling: dict[str, Any] | None = None

    @property
    def is_greedy(self) -> bool | None:
        return None if self.sampling is None else self.sampling.get("temperature") == 0


def load_samples(path: Path | None, key: str | None = None) -> Samples:
    """The samples of a file, or those shipped with the project.

    Known by their first line: `turns` (Spec-Bench and ours; of each only the first turn is asked, as later turns depend
    on the answers), `conversations` (ShareGPT, as JSON lines or one array; the first question), `messages` (captured),
    else plain text with one prompt per line. `key` opens an encrypted file of captured requests.
    Raises `ConfigError` naming what cannot be used.
    """
    path = path or SHIPPED_PROMPTS
    try:
        text = opened(path, path.read_bytes(), key).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read prompts from {path}: {error}") from error
    if not text.lstrip().startswith(("{", "[")):
        return Samples(_required(path, _plain(text)))
    objects = list(_objects(path, text))
    if objects and "conversations" in objects[0][1]:
        return Samples(_required(path, _share_gpt(path, objects)))
    if objects and "messages" in objects[0][1]:
        return Samples(_required(path, _captured(path, objects)))
    prompts = load_prompts(path)
    return Samples(tuple(Sample(item.id, item.category, _user(item.turns[0])) for item in prompts))


def filler_samples(trace: Trace, max_prompt_tokens: int) -> Samples:
    """Requests of about the trace's prompt lengths in words of the shipped prompts, limited to its answer lengths."""
    words = " ".join(turn for prompt in load_prompts() for turn in prompt.turns).split()
    items = []
    for number, row in enumerate(trace.rows):
        length = max(1, int(min(row.prompt_tokens, max_prompt_tokens) * FILLER_WORDS_PER_TOKEN))
        text = " ".join(words[(number * 37 + offset) % len(words)] for offset in range(length))
        items.append(Sample(f"row-{number}", "filler", _user(text), max(2, row.output_tokens)))
    return Samples(tuple(items), has_content=False)


def _user(text: str) -> tuple[Mapping[str, Any], ...]:
    return ({"role": "user", "content": text},)


def _required(path: Path, samples: Iterator[Sample]) -> tuple[Sample, ...]:
    found = tuple(samples)
    if not found:
        raise ConfigError(f"{path} holds no prompts")
    return found


def _plain(text: str) -> Iterator[Sample]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield Sample(f"line-{number}", "plain", _user(line.strip()))


def _objects(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The file's JSON objects with their line (or place in the array)."""
    try:
        if text.lstrip().startswith("["):
            values = list(enumerate(json.loads(text), start=1))
        else:
            # No splitlines: JSON may hold other ends of lines, such as U+2028, as they are.
            values = [(n, json.loads(line)) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    except ValueError as error:
        raise ConfigError(f"{path} is neither JSON lines nor one JSON array: {error}") from error
    for number, value in values:
        if not isinstance(value, dict):
            raise ConfigError(f"{path}:{number}: expected an object")
        yield number, value


def _share_gpt(path: Path, objects: list[tuple[int, dict[str, Any]]]) -> Iterator[Sample]:
    for number, value in objects:
        try:
            conversation = _ShareGpt.model_validate(value)
        except ValidationError as error:
            raise ConfigError(f"{path}:{number}: {explain(error)}") from error
        question = next((item.value for item in conversation.conversations if item.role in ("human", "user")), "")
        if question.strip():
            yield Sample(str(conversation.id), "sharegpt", _user(question))


def _captured(path: Path, objects: list[tuple[int, dict[str, Any]]]) -> Iterator[Sample]:
    for number, value in objects:
        try:
            item = _Captured.model_validate(value)
        except ValidationError as error:
            raise ConfigError(f"{path}:{number}: {explain(error)}") from error
        yield Sample(item.id, item.category, tuple(item.messages), item.max_tokens, item.weight, item.is_greedy)

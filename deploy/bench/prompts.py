"""What load asks for: the shipped prompts, or a file in Spec-Bench's format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import AliasChoices, BaseModel, Field, ValidationError

from fleet.config import explain
from fleet.errors import ConfigError

SHIPPED_PROMPTS = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation as a user would lead it: each turn is sent with the answers before it."""

    id: str
    category: str
    turns: tuple[str, ...]


class _Line(BaseModel):
    id: str | int = Field(validation_alias=AliasChoices("id", "question_id"))
    category: str = Field(min_length=1)
    turns: list[str] = Field(min_length=1)


def load_prompts(path: Path = SHIPPED_PROMPTS) -> tuple[Prompt, ...]:
    """The prompts of a JSON-lines file with `id` (or `question_id`), `category` and `turns`.

    Raises `ConfigError` naming the line that is unusable, or the file that cannot be read or holds no prompt.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read prompts from {path}: {error}") from error
    prompts = tuple(_parse(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip())
    if not prompts:
        raise ConfigError(f"{path} holds no prompts")
    return prompts


def _parse(line: str, where: str) -> Prompt:
    try:
        parsed = _Line.model_validate_json(line)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error)}") from error
    return Prompt(str(parsed.id), parsed.category, tuple(parsed.turns))

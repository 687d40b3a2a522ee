"""What did the target answer before? A memo on disk: token ids by question, append-only, safe against kills."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fleet.errors import ConfigError

TokenIds = NDArray[np.int32]

IDENTITY_FILE = "corpus.json"
SHARD_ANSWERS = 64
"""Answers of one file: as many as a kill can lose."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and how its answer is drawn; the same question always has the same answer."""

    prompt: tuple[int, ...]
    temperature: float
    max_tokens: int
    seed: int

    @property
    def key(self) -> bytes:
        """32 bytes, equal for equal questions."""
        how = f"{self.temperature!r} {self.max_tokens} {self.seed} ".encode()
        return hashlib.sha256(how + np.asarray(self.prompt, np.int32).tobytes()).digest()


class Corpus:
    """Answers of one target. Each shard is a safetensors file that appears whole or not at all."""

    def __init__(self, folder: Path, target: str) -> None:
        """`target` identifies the weights. Raises ConfigError where the folder holds another target's answers."""
        folder.mkdir(parents=True, exist_ok=True)
        _claim(folder / IDENTITY_FILE, target)
        self._folder = folder
        self._answers: dict[bytes, TokenIds] = {}
        self._unsaved: list[tuple[Question, TokenIds]] = []
        for file in sorted(folder.glob("answers-*.safetensors")):
            self._answers.update(_read(file))

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, question: Question) -> TokenIds | None:
        """The answer's token ids, int32 [n], end of sequence included where it ended by itself."""
        return self._answers.get(question.key)

    def add(self, question: Question, answer: TokenIds) -> None:
        self._answers[question.key] = answer
        self._unsaved.append((question, answer))
        if len(self._unsaved) >= SHARD_ANSWERS:
            self.flush()

    def flush(self) -> None:
        """Write what is new as one more shard, named by its content so that two writers never meet."""
        if not self._unsaved:
            return
        keys = np.frombuffer(b"".join(question.key for question, _ in self._unsaved), np.uint8).reshape(-1, 32)
        prompts = [np.asarray(question.prompt, np.int32) for question, _ in self._unsaved]
        answers = [answer for _, answer in self._unsaved]
        name = hashlib.sha256(keys.tobytes()).hexdigest()[:16]
        unfinished = self._folder / f"unfinished-{name}-{os.getpid()}"
        save_file(
            {
                "keys": keys,
                "prompts": np.concatenate(prompts),
                "prompt_lengths": _lengths(prompts),
                "answers": np.concatenate(answers),
                "answer_lengths": _lengths(answers),
            },
            unfinished,
        )
        os.replace(unfinished, self._folder / f"answers-{name}.safetensors")
        self._unsaved.clear()


def _claim(file: Path, target: str) -> None:
    if not file.exists():
        file.write_text(json.dumps({"target": target}))
    try:
        found = json.loads(file.read_text()).get("target")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if found != target:
        raise ConfigError(f"{file.parent} holds the answers of another target; give another --corpus")


def _read(file: Path) -> dict[bytes, TokenIds]:
    try:
        shard = load_file(file)
        ends = np.cumsum(shard["answer_lengths"])[:-1]
        answers = np.split(shard["answers"], ends)
        return {key.tobytes(): answer for key, answer in zip(shard["keys"], answers, strict=True)}
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ConfigError(f"{file} is damaged, delete it to have its answers made again: {error}") from error


def _lengths(parts: list[TokenIds]) -> TokenIds:
    return np.asarray([len(part) for part in parts], np.int32)

"""The memo of answers on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deploy.train.corpus import SHARD_ANSWERS, Corpus, Question
from fleet.errors import ConfigError


def question(index: int) -> Question:
    return Question((1, 2, index), 0.0, 8, 0)


def answer(index: int) -> np.ndarray:
    return np.arange(index % 5, dtype=np.int32)


def filled(folder: Path, count: int) -> Corpus:
    corpus = Corpus(folder, "target")
    for index in range(count):
        corpus.add(question(index), answer(index))
    return corpus


def test_answers_survive_and_more_can_be_appended(tmp_path: Path) -> None:
    filled(tmp_path, 3).flush()
    corpus = Corpus(tmp_path, "target")
    corpus.add(question(3), answer(3))
    corpus.flush()
    again = Corpus(tmp_path, "target")
    assert len(again) == 4
    assert all(np.array_equal(again.get(question(index)), answer(index)) for index in range(4))
    assert again.get(question(4)) is None


def test_a_kill_costs_no_more_than_one_unfinished_shard(tmp_path: Path) -> None:
    filled(tmp_path, SHARD_ANSWERS + 5)  # never flushed
    (tmp_path / "unfinished-123").write_bytes(b"half a shard")
    assert len(Corpus(tmp_path, "target")) == SHARD_ANSWERS


@pytest.mark.parametrize(
    "other",
    [{"prompt": (1, 2)}, {"temperature": 0.5}, {"max_tokens": 9}, {"seed": 1}],
    ids=lambda changed: next(iter(changed)),
)
def test_whatever_changes_the_answer_is_part_of_the_question(other: dict[str, object]) -> None:
    assert replace(question(0), **other).key != question(0).key
    assert replace(question(0)).key == question(0).key


def test_answers_of_another_target_are_refused(tmp_path: Path) -> None:
    filled(tmp_path, 1).flush()
    with pytest.raises(ConfigError, match="another target"):
        Corpus(tmp_path, "other")


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    filled(tmp_path, 1).flush()
    (shard,) = tmp_path.glob("answers-*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-7])
    with pytest.raises(ConfigError, match="damaged"):
        Corpus(tmp_path, "target")

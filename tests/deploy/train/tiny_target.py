"""A tiny random target of eight layers, loaded once, and examples of its own answers."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import LlamaConfig

from deploy.train.dialogues import Example
from deploy.train.draft import Draft
from deploy.train.eagle import Eagle
from deploy.train.eagle3 import Eagle3
from deploy.train.gather import gather
from deploy.train.lesson import Lesson, make_lesson
from deploy.train.medusa import Medusa
from deploy.train.screen import Screen
from deploy.train.settings import DraftSettings, Eagle3Settings, EagleSettings, MedusaSettings, TrainSettings
from deploy.train.target import Target, load_target
from deploy.train.trainee import Method
from tests.tiny_models import SIZES, tiny_model_folder

LAYERS = 8
"""Fewer make EAGLE-3's three taps fall together."""
HIDDEN, INTERMEDIATE = SIZES["hidden_size"], SIZES["intermediate_size"]
VOCABULARY = SIZES["vocab_size"]
HEADS, KV_HEADS, WIDTH = 6, 2, 8
PROMPTS = ("rivers", "bridges", "towns", "cats", "dogs", "trees", "cars", "boats")
QUIET = Screen(Console(quiet=True))

METHODS: dict[str, tuple[type[TrainSettings], Any, dict[str, Any]]] = {
    "draft_model": (DraftSettings, Draft, {"draft_vocab": 120, "depth": 3, "layers": 2}),
    "eagle": (EagleSettings, Eagle, {"draft_vocab": 120, "depth": 3, "token_weight": 1.0, "noise": 0.02}),
    "eagle3": (Eagle3Settings, Eagle3, {"draft_vocab": 120, "depth": 3, "unroll": 3}),
    "medusa": (MedusaSettings, Medusa, {"heads": 3}),
    "medusa, cut": (MedusaSettings, Medusa, {"heads": 3, "draft_vocab": 120}),
    "medusa, one head": (MedusaSettings, Medusa, {"heads": 3, "draft_vocab": 120, "shared_head": True}),
}
"""Settings, method and what is special about each kind of proposer."""


@functools.cache
def workplace() -> Path:
    """A folder with `target`, a model, and `prompts.txt`; it goes with the process."""
    folder = tempfile.TemporaryDirectory()
    _KEPT.append(folder)
    root = Path(folder.name)
    tiny_model_folder(root / "target", LlamaConfig(**{**SIZES, "num_hidden_layers": LAYERS}))
    (root / "prompts.txt").write_text("\n".join(f"Tell me about {what}." for what in PROMPTS))
    return root


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def method_of(kind: str, out: Path, **changed: Any) -> tuple[TrainSettings, Method]:
    """A kind of METHODS with settings that are fast on tiny models."""
    settings_type, method_type, special = METHODS[kind]
    root = workplace()
    values = {
        "out": out,
        "target": str(root / "target"),
        "dtype": "float32",
        "prompts": (root / "prompts.txt",),
        "corpus": root / "corpus",
        "answer_tokens": 16,
        "temperatures": (0.0,),
        "held_out": 0.25,
        "batch_tokens": 128,
        "learning_rate": 0.01,
        "threads": 1,
    }
    settings = settings_type(**{**values, **special, **changed})
    return settings, method_type(settings)


@functools.cache
def target_of(taps: tuple[int, ...]) -> Target:
    return load_target(method_of("eagle", workplace())[0], lambda layers: taps, lambda text: None)


def lesson_of(settings: TrainSettings, method: Method) -> Lesson:
    """The target's answers to the prompts, as the command would learn them."""
    target = target_of(method.taps(LAYERS))
    return make_lesson(settings, target, examples(settings, target), method.vocabulary_size(VOCABULARY))


def examples(settings: TrainSettings, target: Target) -> list[Example]:
    return gather(settings, target, QUIET)

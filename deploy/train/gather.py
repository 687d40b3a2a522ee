"""Where do the examples come from? Prompt files and made-up turns, answered by the target, remembered in a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deploy.train.answering import Answerer
from deploy.train.corpus import Corpus, Question, TokenIds
from deploy.train.dialogues import Example, Manner, converse, make_up, shortened
from deploy.train.prompts import Conversation, read_prompts, split
from deploy.train.screen import Screen
from deploy.train.settings import TrainSettings
from deploy.train.target import Target
from fleet.config import cache_folder
from fleet.errors import ConfigError


def corpus_folder(settings: TrainSettings, target: Target) -> Path:
    """Where the target's answers lie: as asked for, or in the cache by target."""
    return settings.corpus or cache_folder() / "corpora" / f"{Path(target.name).name}-{target.weights.digest}"


def read_files(files: Sequence[Path]) -> list[Conversation]:
    """The conversations of all files; ConfigError where one is unusable or holds none."""
    found: list[Conversation] = []
    for file in files:
        conversations = list(read_prompts(file))
        if not conversations:
            raise ConfigError(f"{file} holds no prompts")
        found += conversations
    return found


def gather(settings: TrainSettings, target: Target, screen: Screen) -> list[Example]:
    """All examples, held-out ones included. Raises ConfigError where there is nothing to train on."""
    from_files, measured = read_files(settings.prompts), read_files(settings.held_out_prompts)
    corpus = Corpus(corpus_folder(settings, target), f"{target.weights.digest} {settings.dtype}")
    answerer = Answerer(target.model, target.tokenizer, corpus, settings.answer_batch)

    def ask(questions: Sequence[Question], what: str) -> list[TokenIds]:
        with screen.bar(what, len(questions)) as advance:
            return answerer.answer(questions, lambda count, tokens: advance(count, ""))

    made_up = make_up(target.tokenizer, settings.generate, settings.seed, ask)
    conversations = split([*from_files, *made_up], measured, settings.held_out)
    manner = Manner(settings.temperatures, settings.answer_tokens, _longest_prompt(settings, target), settings.seed)
    examples = shortened(converse(target.tokenizer, conversations, manner, ask), target.context)
    if all(example.is_held_out for example in examples):
        raise ConfigError("nothing to train on: give --prompts FILE or --generate N, or lower --held-out")
    return examples


def _longest_prompt(settings: TrainSettings, target: Target) -> int:
    room = target.context - settings.answer_tokens
    if room < 1:
        raise ConfigError(f"--answer-tokens {settings.answer_tokens} leaves no room for a prompt in {target.context}")
    return min(settings.max_prompt_tokens, room)

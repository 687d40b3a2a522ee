"""How large will it be and how long will it take? Measured on the spot, at a small scale."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from deploy.train.answering import Answerer
from deploy.train.batches import packed
from deploy.train.corpus import Corpus, Question
from deploy.train.dialogues import Example, first_prompt_lengths
from deploy.train.gather import read_files
from deploy.train.publish import file_bytes
from deploy.train.settings import TrainSettings
from deploy.train.target import Target
from deploy.train.trainee import Method
from deploy.train.vocabulary import DraftVocabulary

PROBE_TOKENS = 512
PROBE_PROMPT_TOKENS, PROBE_ANSWER_TOKENS = 8, 32
"""In about the proportion of made-up prompts and their answers."""
MADE_UP_PROMPT_TOKENS = 64
"""Typical of a made-up turn in its template."""
STATE_BYTES = 2
OPTIMIZER_COPIES = 3
"""Weights and AdamW's two moments, float32."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second."""

    answering: float
    states: float
    learning: float


def estimate(method: Method, settings: TrainSettings, target: Target) -> list[str]:
    """Lines to print. Answers count as if all were as long as they may be; those known already are not subtracted."""
    conversations = read_files([*settings.prompts, *settings.held_out_prompts])
    prompts = first_prompt_lengths(target.tokenizer, conversations) + [MADE_UP_PROMPT_TOKENS] * settings.generate
    answers = sum(len(conversation.turns) for conversation in conversations) + settings.generate
    prompt_tokens = int(np.mean(prompts)) if prompts else 0
    tokens = answers * (prompt_tokens + settings.answer_tokens)
    vocab_size = int(target.weights.embedding.shape[0])
    size = method.vocabulary_size(vocab_size)
    vocabulary = DraftVocabulary(torch.arange(size, device=target.weights.device), vocab_size)
    checkpoint = method.initial(target.weights, vocabulary)
    parameters = sum(p.numel() for p in method.trainee(checkpoint, target.weights, vocabulary).parameters())
    width = len(target.taps) * target.weights.embedding.shape[1]
    speed = _measure(method, settings, target, vocabulary)
    made_up = settings.generate * MADE_UP_PROMPT_TOKENS
    cached = tokens * width * STATE_BYTES
    passes = 1 if cached <= settings.cache_gib * 2**30 else settings.epochs
    steps = max(1, tokens // settings.batch_tokens) * settings.epochs
    seconds = {
        "answering": (answers * settings.answer_tokens + made_up) / speed.answering,
        "hidden states": passes * tokens / speed.states,
        "training": settings.epochs * tokens / speed.learning,
    }
    return [
        f"trains {parameters / 1e6:.2f} M parameters; files {file_bytes(checkpoint) / 1e6:.1f} MB, "
        f"checkpoint {parameters * 4 * OPTIMIZER_COPIES / 1e6:.0f} MB, hidden states {cached / 2**30:.2f} GiB",
        f"{answers} answers, at most {tokens} tokens with their prompts, {steps} steps of {settings.batch_tokens}",
        f"measured here: answering {speed.answering:.0f}, hidden states {speed.states:.0f}, "
        f"training {speed.learning:.0f} tokens/s",
        "at most: "
        + ", ".join(f"{what} {_minutes(time)}" for what, time in seconds.items())
        + f"; {_minutes(sum(seconds.values()))} in all",
    ]


def _measure(method: Method, settings: TrainSettings, target: Target, vocabulary: DraftVocabulary) -> Speed:
    tokens = np.random.default_rng(0).integers(0, target.tokenizer.vocab_size, PROBE_TOKENS, np.int32)
    example = Example(tokens, PROBE_TOKENS // 4, is_held_out=False)
    trainee = method.trainee(method.initial(target.weights, vocabulary), target.weights, vocabulary)
    batch = packed([example], target.states([tokens.tolist()])[0].clone(), target.weights.device)

    def learn() -> int:
        torch.autograd.backward(trainee.losses(batch, torch.Generator().manual_seed(0)).total)
        return PROBE_TOKENS

    def states() -> int:
        return len(target.states([tokens.tolist()])[0])

    with tempfile.TemporaryDirectory() as folder:
        answerer = Answerer(target.model, target.tokenizer, Corpus(Path(folder), ""), settings.answer_batch)
        rounds = iter(range(2))

        def answer() -> int:
            first = next(rounds) * settings.answer_batch
            prompt = tuple(tokens[:PROBE_PROMPT_TOKENS].tolist())
            temperatures = settings.temperatures
            seeds = range(first, first + settings.answer_batch)
            questions = [
                Question(prompt, temperatures[seed % len(temperatures)], PROBE_ANSWER_TOKENS, seed) for seed in seeds
            ]
            return sum(map(len, answerer.answer(questions, lambda count, tokens: None)))

        return Speed(_rate(answer), _rate(states), _rate(learn))


def _rate(work: Callable[[], int]) -> float:
    """Tokens per second of the second time; the first one pays for first times."""
    work()
    started = time.perf_counter()
    tokens = work()
    return tokens / (time.perf_counter() - started)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"

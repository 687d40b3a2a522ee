"""Which requests does a soak ask, and what becomes of each? Seeded, and of every kind that takes another way."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from deploy.bench.prompts import Prompt
from fleet.generation import GenerationRequest, SamplingParams
from fleet.tokenizer import Tokenizer

CATEGORIES = ("chat", "code", "summarization")
ANSWER_TOKENS = (1, 32)
LEFT = 0.25
LATEST_LEAVING = 6
"""Chunks that a client who leaves may have read."""


@dataclass(frozen=True, slots=True)
class Errand:
    """A request, and after how many chunks its client leaves; None = it stays to the end."""

    request: GenerationRequest
    leaves_after: int | None


def prompt_ids(prompts: Sequence[Prompt], tokenizer: Tokenizer, longest: int) -> list[tuple[int, ...]]:
    """Chat, code and summarization prompts as a chat would have them, the long ones cut."""
    chosen = [prompt.turns[0] for prompt in prompts if prompt.category in CATEGORIES]
    return [tuple(tokenizer.render_chat([{"role": "user", "content": text}])[:longest]) for text in chosen]


def errands(seed: int, prompts: Sequence[tuple[int, ...]], vocab_size: int) -> Iterator[Errand]:
    """Endless: short and long, greedy and sampled, penalised, stopped, scored, not speculated on, left, refused."""
    dice = random.Random(seed)
    number = 0
    while True:
        number += 1
        request = GenerationRequest(f"soak-{number}", dice.choice(prompts), _sampling(dice, number))
        if dice.random() < 0.1:
            request = replace(request, num_speculative_tokens=dice.choice((0, 1)))
        if dice.random() < 0.02:
            request = replace(request, prompt_token_ids=(vocab_size + number,))
        yield Errand(request, dice.randint(0, LATEST_LEAVING) if dice.random() < LEFT else None)


def _sampling(dice: random.Random, seed: int) -> SamplingParams:
    plain = SamplingParams(seed=seed, max_tokens=dice.randint(*ANSWER_TOKENS), ignore_eos=True)
    variants = (
        plain,
        replace(plain, temperature=0.0),
        replace(plain, temperature=0.0),
        replace(plain, temperature=0.8, top_p=0.9, top_k=20),
        replace(plain, temperature=0.0, repetition_penalty=1.2, presence_penalty=0.5),
        replace(plain, logprobs=2, logit_bias=((5, 2.0),)),
        replace(plain, stop=("e", "a"), ignore_eos=False),
        replace(plain, prompt_logprobs=True, logprobs=1),
    )
    return dice.choice(variants)

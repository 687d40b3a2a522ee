"""Which requests does a soak ask, and what becomes of each? Seeded, and of every kind that takes another way."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fleet.generation import GenerationRequest, SamplingParams

PROMPT_TOKENS = (1, 90)
ANSWER_TOKENS = (1, 60)


@dataclass(frozen=True, slots=True)
class Errand:
    """A request, and after how many chunks its client leaves; None = it stays to the end."""

    request: GenerationRequest
    leaves_after: int | None


def errands(seed: int, vocab_size: int) -> Iterator[Errand]:
    """Endless: short and long, greedy and sampled, penalised, stopped, scored, not speculated on, left, refused."""
    dice = random.Random(seed)
    number = 0
    while True:
        number += 1
        prompt = tuple(dice.randrange(3, vocab_size) for _ in range(dice.randint(*PROMPT_TOKENS)))
        request = GenerationRequest(f"soak-{number}", prompt, _sampling(dice, number))
        if dice.random() < 0.1:
            request = replace(request, num_speculative_tokens=dice.choice((0, 1)))
        if dice.random() < 0.02:
            request = replace(request, prompt_token_ids=(vocab_size + number,))
        yield Errand(request, dice.randint(0, 6) if dice.random() < 0.25 else None)


def _sampling(dice: random.Random, seed: int) -> SamplingParams:
    plain = SamplingParams(seed=seed, max_tokens=dice.randint(*ANSWER_TOKENS), ignore_eos=True)
    variants = (
        plain,
        replace(plain, temperature=0.0),
        replace(plain, temperature=0.8, top_p=0.9, top_k=20),
        replace(plain, temperature=0.0, repetition_penalty=1.2, presence_penalty=0.5),
        replace(plain, logprobs=2, logit_bias=((5, 2.0),)),
        replace(plain, stop=("e", "a"), ignore_eos=False),
        replace(plain, prompt_logprobs=True, logprobs=1),
    )
    return dice.choice(variants)

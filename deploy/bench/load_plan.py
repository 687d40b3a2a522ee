"""Which requests a load run sends, for whom and when: seeded, so that two runs ask the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from deploy.bench.prompts import Prompt
from fleet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One load run.

    Exactly one of `concurrency` (closed loop: so many conversations are always open) and `rate_per_second`
    (open loop: conversations begin as a Poisson process, whatever the server does) is set. It ends after
    `requests` requests or `duration_seconds`, whichever comes first; at least one of them is set.
    """

    url: str
    """Base of the API, without `/v1`."""
    prompts: tuple[Prompt, ...]
    concurrency: int | None = None
    rate_per_second: float | None = None
    requests: int | None = None
    duration_seconds: float | None = None
    users: int = 100
    """Distinct `x-session-id` values; conversations are dealt to them in turn."""
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    model: str | None = None
    """None asks the server which model it serves."""
    api_key: str | None = None
    path: str | None = None
    """Sent as `x-fleet-path`: every request goes to this path and is left out of the comparison."""
    timeout_seconds: float = 600.0
    """Longest wait for the next piece of an answer."""

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate_per_second is None):
            raise ConfigError("a load run needs either a concurrency or a rate")
        if self.requests is None and self.duration_seconds is None:
            raise ConfigError("a load run needs a number of requests or a duration")
        bounds = {
            "concurrency": self.concurrency,
            "rate": self.rate_per_second,
            "requests": self.requests,
            "duration": self.duration_seconds,
            "users": self.users,
            "max tokens": self.max_tokens,
            "number of prompts": len(self.prompts),
        }
        for name, value in bounds.items():
            if value is not None and value <= 0:
                raise ConfigError(f"the {name} must be positive, not {value}")


@dataclass(frozen=True, slots=True)
class Conversation:
    """One prompt asked by one user, turn after turn."""

    user: str
    prompt: Prompt
    turns: int
    """How many of the prompt's turns are asked; less than all only where the run ends."""
    seed: int
    """Sampling seed of the first turn; each further turn adds one."""
    due_seconds: float | None
    """Open loop: when it begins, from the start of the run."""


def conversations(plan: LoadPlan) -> Iterator[Conversation]:
    """The run's conversations in order of their beginning; endless for a closed loop without `requests`.

    Every prompt is asked once before any is asked again, in an order drawn from the seed.
    """
    shuffle, arrival = random.Random(plan.seed), random.Random(plan.seed + 1)
    due = 0.0
    seed = plan.seed * 1_000_003
    left = plan.requests
    for number, prompt in enumerate(_endless(plan.prompts, shuffle)):
        if plan.rate_per_second is not None:
            due += arrival.expovariate(plan.rate_per_second)
            if plan.duration_seconds is not None and due >= plan.duration_seconds:
                return
        turns = len(prompt.turns) if left is None else min(len(prompt.turns), left)
        if turns == 0:
            return
        user = f"load-{plan.seed}-{number % plan.users}"
        yield Conversation(user, prompt, turns, seed, None if plan.rate_per_second is None else due)
        seed += turns
        left = None if left is None else left - turns


def _endless(prompts: tuple[Prompt, ...], shuffle: random.Random) -> Iterator[Prompt]:
    while True:
        yield from shuffle.sample(prompts, len(prompts))

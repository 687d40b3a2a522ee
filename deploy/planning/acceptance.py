"""How many tokens does a round bring? From one acceptance rate, or from the rate at each position."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from fleet.errors import ConfigError

SEARCH_STEPS = 60


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Either one conditional rate for every position, or measured rates (÷ rounds) of the first positions."""

    rate: float | None = None
    per_position: tuple[float, ...] = ()
    drafting_share: float = 1.0
    """Of the rounds; in the others the target decodes alone."""

    @property
    def longest(self) -> int | None:
        """Draft lengths beyond it were not measured."""
        return len(self.per_position) or None

    def tokens_per_round(self, length: int) -> float:
        """Expected tokens of a round that drafts `length` tokens, the target's own included.

        (1 − α^{k+1})/(1 − α), Leviathan et al. 2022 (arXiv:2211.17192) equation 1; for measured positions
        1 + Σ p_i, of which that is the special case p_i = α^i. Positions not measured bring nothing.
        """
        if self.rate is None:
            return 1.0 + sum(self.per_position[:length])
        return 1.0 + sum(self.rate**position for position in range(1, length + 1))

    def __str__(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g}"
        return "/".join(f"{rate:g}" for rate in self.per_position)


def parse_acceptance(text: str) -> Acceptance:
    """'0.75', or unconditional rates by position '0.8/0.6/0.45'. Raises ConfigError."""
    try:
        rates = tuple(float(part) for part in text.split("/"))
    except ValueError as error:
        raise ConfigError(f"acceptance '{text}' is no rate; write 0.75, or 0.8/0.6/0.45 by position") from error
    if not all(0.0 <= rate <= 1.0 for rate in rates):
        raise ConfigError(f"acceptance '{text}' must lie between 0 and 1")
    if len(rates) == 1:
        return Acceptance(rate=rates[0])
    if any(later > earlier for earlier, later in pairwise(rates)):
        raise ConfigError(f"acceptance '{text}': a position is reached only through the one before, so rates must fall")
    return Acceptance(per_position=rates)


def rate_for(tokens: float, length: int) -> float | None:
    """The conditional rate that brings so many tokens a round; 0 where none is needed, None where none is enough."""
    if tokens <= 1.0:
        return 0.0
    if tokens > length + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(SEARCH_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if Acceptance(rate=middle).tokens_per_round(length) < tokens else (low, middle)
    return high

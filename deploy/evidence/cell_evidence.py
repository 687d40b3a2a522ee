"""What does a verdict on a cell, or on a bucket of it, rest on?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """How many of an arm's requests were of some kind."""

    hits: int
    total: int

    @property
    def share(self) -> float:
        return self.hits / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Harm:
    """How often something bad happened to each arm."""

    baseline: Counts
    candidate: Counts
    differences: tuple[int, ...]
    """How often it happened to the candidate less how often to the baseline, one per round."""


@dataclass(frozen=True, slots=True)
class CellEvidence:
    """All that a verdict on a cell, or on a bucket of it, rests on.

    Gains are natural logarithms, one per round, above 0 where the candidate is better. Pairs are (baseline, candidate).
    """

    rounds: int
    """Paired rounds that were measured. Not each has a value of every kind: a bucket may come in a few of them only."""
    objective: tuple[float, ...]
    ttft: tuple[float, ...]
    ttft_room: tuple[float, ...]
    """Logarithm of what is allowed over what was measured: below 0 the first token comes too late."""
    throughput: tuple[float, ...] | None
    """None in an open loop, where throughput is what was offered."""
    bad: Harm
    fallbacks: tuple[int, int]
    """Of the bad ones: lost by a replica, and finished by another."""
    degenerate: Harm
    kv_usage: tuple[float | None, float | None]
    preemptions: tuple[int | None, int | None]
    greedy_equal: Counts | None
    """Pairs of greedy answers with the same text; None where answers are sampled."""
    client_lag_share: float | None
    """The client's p95 lateness over the faster arm's median tpot."""
    has_content: bool
    remembers: bool
    """A path drafts from the answers that it has given, and was asked for the same ones again."""

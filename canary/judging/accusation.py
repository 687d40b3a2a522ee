"""How far does the evidence against the canary go? One e-process for the steps, one e-detector from promotion on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from canary.stats.detector import EDetector
from canary.stats.eprocess import EProcess
from canary.verdict import Proof, Stage


@dataclass(frozen=True, slots=True)
class Budget:
    """What chances of error a guardrail may spend."""

    alpha: float
    """Of a false trip of this guardrail: in the whole rollout, and after promotion in as long a time again."""
    alpha_total: float
    """Of a false trip of any guardrail; also of a false proof that the canary is no worse."""
    horizon: float
    """Windows in the whole plan."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What is to be known of a window before its data."""

    is_promoted: bool = False
    is_steady: bool = True
    """Not the window in which the weight changed, and not one of the warm-up windows after it."""


@dataclass(frozen=True, slots=True)
class Accusation:
    """State of one guardrail's evidence."""

    process: EProcess
    late: EDetector
    bets: int = 0
    """Settled in this attempt and since promotion."""

    @classmethod
    def start(cls, alternatives: int, share: float) -> Accusation:
        """`share` of the capital is staked in the first step."""
        return cls(EProcess.start(alternatives, share), EDetector.start(alternatives))

    def next_step(self, share: float) -> Accusation:
        """Stake a further share."""
        return replace(self, process=self.process.stake(share))

    def settle(self, log_factors: Sequence[float], *, is_promoted: bool) -> Accusation:
        """One window's bets."""
        if is_promoted:
            return replace(self, late=self.late.update(log_factors), bets=self.bets + 1)
        return replace(self, process=self.process.update(log_factors), bets=self.bets + 1)

    def proof(self, budget: Budget, *, is_promoted: bool) -> Proof:
        """Before promotion P(ever reached by a canary within its limit) ≤ alpha; afterwards an alarm whose
        chance within `horizon` windows is alpha."""
        if is_promoted:
            return Proof(self.late.log_e, math.log(budget.horizon / budget.alpha))
        return Proof(self.process.log_e, -math.log(budget.alpha))

    def seconds_to_trip(self, proof: Proof, stage: Stage) -> float | None:
        """When the evidence will suffice at its mean growth so far; None where it does not grow.

        A detector grows by itself, so nothing is foretold after promotion.
        """
        if proof.is_reached or proof.log_e < _NOTEWORTHY or stage.is_promoted:
            return None
        return (proof.log_threshold - proof.log_e) / proof.log_e * self.bets * stage.window_seconds


_NOTEWORTHY = 1.0
"""log e below which a trend is noise."""

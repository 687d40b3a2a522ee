"""How far does the evidence against the canary go, through the steps and for as long as it is watched afterwards?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from canary.stats.detector import EDetector, staked, unstaked
from canary.stats.eprocess import EProcess, log_weighted_sum_exp
from canary.verdict import Proof, Stage


@dataclass(frozen=True, slots=True)
class Budget:
    """What chances of error a guardrail may spend."""

    alpha: float
    """That this guardrail ever trips on a canary that keeps its limit, however long it waits or is watched."""
    alpha_total: float
    """The same of any guardrail; also of a false proof that the canary is no worse."""
    watch: float = 0.0
    """Share of the betting capital that is kept for the time after promotion, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What is to be known of a window before its data."""

    is_promoted: bool = False
    is_steady: bool = True
    """Not the window in which the weight changed, and not one of the warm-up windows after it."""


@dataclass(frozen=True, slots=True)
class Accusation:
    """State of one guardrail's evidence: an e-process for the steps, and an e-detector from promotion on.

    A watch has no end, and what goes wrong in it may begin at any time; a step is short and begins afresh.
    """

    process: EProcess
    late: EDetector
    bets: int = 0
    """Settled in this attempt."""
    watched: int = 0
    """Those of them settled since promotion."""

    @classmethod
    def start(cls, alternatives: int, share: float) -> Accusation:
        """`share` of the steps' capital is staked in the first step."""
        return cls(EProcess.start(alternatives, share), EDetector.start(alternatives))

    def next_step(self, share: float) -> Accusation:
        """Stake a further share."""
        return replace(self, process=self.process.stake(share))

    def settle(self, log_factors: Sequence[float], *, is_promoted: bool) -> Accusation:
        """One window's bets."""
        bets = self.bets + 1
        if not is_promoted:
            return replace(self, process=self.process.update(log_factors), bets=bets)
        number = self.watched + 1
        return replace(self, late=self.late.update(log_factors, staked(number)), bets=bets, watched=number)

    def proof(self, budget: Budget) -> Proof:
        """P(ever reached by a canary within its limit) ≤ alpha, in the steps and after promotion together.

        The mean, weighted by capital, of two e-processes is one (Vovk & Wang, arXiv 1912.06116), so Ville's
        inequality holds for it without a horizon. The steps' part keeps the value that it has at promotion; the
        watch's is its detector and what that has not staked yet.
        """
        if not budget.watch:
            return Proof(self.process.log_e, -math.log(budget.alpha))
        values = [self.process.log_e, self.late.log_r_mean, math.log(unstaked(self.watched))]
        weights = [1.0 - budget.watch, budget.watch, budget.watch]
        return Proof(log_weighted_sum_exp(values, weights), -math.log(budget.alpha))

    def seconds_to_trip(self, proof: Proof, stage: Stage) -> float | None:
        """When the evidence will suffice at its mean growth so far; None where it does not grow.

        A detector does not grow evenly, so nothing is foretold after promotion.
        """
        if proof.is_reached or proof.log_e < _NOTEWORTHY or stage.is_promoted:
            return None
        return (proof.log_threshold - proof.log_e) / proof.log_e * self.bets * stage.window_seconds


_NOTEWORTHY = 1.0
"""log e below which a trend is noise."""

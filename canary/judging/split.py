"""Guardrail realised_split: do routers give the canary the share of users that was set?"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from canary.judging.accusation import Budget, Moment
from canary.stats.bernoulli import ODDS, log_e, log_factors
from canary.stats.intervals import mean_interval
from canary.verdict import Level, Proof, Stage, Verdict
from canary.windows import Window

ALPHA = 0.001
"""Of calling correct routers broken, whatever the plan's alpha is."""


@dataclass(frozen=True, slots=True)
class SplitRail:
    """State of the guardrail.

    The draws are users, not requests: a user stays in one arm, so a heavy user would look like a wrong
    split. A router counts each user once; several routers may each count the same one.
    """

    log_ratios: tuple[float, ...] = (0.0,) * len(ODDS)
    """Of each alternative, over all that every router counted."""
    routers: tuple[str, ...] = ()
    """Who counted in the last window that was judged."""
    counters: int = 0
    """How many ever counted; a router that was restarted or came back is another one: it may count users again."""
    expected: float = 0.0
    """Newcomers that the canary should have had."""
    newcomers: tuple[int, int] = (0, 0)
    """Stable's and the canary's, since the attempt began."""
    has_tripped: bool = False
    """Latched: the comparison is worthless from then on."""
    guardrail: Literal["realised_split"] = "realised_split"
    kind: Literal["split"] = "split"

    @classmethod
    def start(cls) -> SplitRail:
        return cls()

    def next_step(self, _: float) -> SplitRail:
        return self

    def observe(self, window: Window, moment: Moment) -> SplitRail:
        """Settle the bets of a window in which all routers had the same weight."""
        hits, trials = window.canary.newcomers, window.canary.newcomers + window.stable.newcomers
        share = window.canary_percent / 100.0
        if not moment.is_steady or not trials or not 0.0 < share < 1.0:
            return self
        factors = log_factors(hits, trials, share)
        grown = replace(
            self,
            log_ratios=tuple(old + new for old, new in zip(self.log_ratios, factors, strict=True)),
            routers=window.routers,
            counters=self.counters + len(set(window.routers) - set(self.routers)),
            expected=self.expected + share * trials,
            newcomers=(self.newcomers[0] + trials - hits, self.newcomers[1] + hits),
        )
        return replace(grown, has_tripped=self.has_tripped or grown._proof.is_reached)

    @property
    def _proof(self) -> Proof:
        return Proof(log_e(self.log_ratios, max(1, self.counters)), -math.log(ALPHA))

    def proof(self, _: Budget) -> Proof:
        return self._proof

    def judge(self, _: Stage, __: Budget) -> Verdict:
        """NO_DATA once the split is proven wrong: what is compared then is not what was meant to be compared."""
        stable, canary = self.newcomers
        users = stable + canary
        if not users:
            return Verdict(self.guardrail, Level.PASS, "no new users yet", "ratio", proof=self._proof)
        mean, expected = canary / users, self.expected / users
        seen = f"{mean:.1%} of {users} new users since the warm-up went to the canary, {expected:.1%} was set"
        reason = f"the split is not what was set, so nothing is moved: {seen}" if self.has_tripped else seen
        return Verdict(
            self.guardrail,
            Level.NO_DATA if self.has_tripped else Level.PASS,
            reason,
            "ratio",
            mean,
            mean_interval(canary, users, 0.05),
            expected,
            self._proof,
            users,
        )

"""In one window, how do the bets on "this arm's tail is heavier than the other's" come out?"""

from __future__ import annotations

import math
from dataclasses import dataclass

BETS = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
"""Stakes; their mean adapts to small and large differences."""
CAP = 0.25
"""Share of exceedances above which a window counts as no worse: one bad window must not decide."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Of one arm in one window: how many values there were, and how many lay above its threshold."""

    above: int
    total: int

    @property
    def share(self) -> float:
        return self.above / self.total


def log_factors(suspect: Tail, reference: Tail, *, suspect_is_larger: bool) -> tuple[float, ...]:
    """One log factor per bet on "the suspect's share above its threshold is the higher one".

    The null hypothesis is E[suspect share - reference share | past] ≤ 0. The unit is the window: what
    both arms share in it (load, prefill storms, the host) cancels in the difference, and tokens within
    it may depend on each other as they like. A window in which either arm has no values is no bet.

    Both shares are capped at CAP, which sharpens the bet and bounds a shock. Capping lowers the mean of
    the noisier (smaller) arm more (Jensen), so it is safe only while the suspect is not the larger arm;
    otherwise the plain difference is used, which is unbiased at any sizes and sees less. Which arm is
    larger has to be known before the window, as it is from the weight.
    """
    if not suspect.total or not reference.total:
        return (0.0,) * len(BETS)
    if suspect_is_larger:
        difference = suspect.share - reference.share
    else:
        difference = (min(suspect.share, CAP) - min(reference.share, CAP)) / CAP
    return tuple(math.log1p(bet * difference) for bet in BETS)

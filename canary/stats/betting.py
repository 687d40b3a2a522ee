"""In one window, how do the bets on "the canary is worse than it may be" come out?"""

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


def log_factors(difference: float) -> tuple[float, ...]:
    """One log factor per bet on a difference in [-1, 1], against E[difference | past] ≤ 0.

    1 + bet * difference is positive and has mean ≤ 1 under the null (Waudby-Smith & Ramdas, arXiv
    2010.09686, section 4). The unit is the window: what both arms share in it (load, prefill storms, the
    host) cancels in the difference, and values within it may depend on each other as they like.
    """
    return tuple(math.log1p(bet * difference) for bet in BETS)


def tail_difference(suspect: Tail, reference: Tail, *, suspect_is_larger: bool) -> float:
    """By how much the suspect's share above its threshold is the higher one, -1 to 1. Both need values.

    Both shares are capped at CAP, which sharpens the bet and bounds a shock. Capping lowers the mean of
    the noisier (smaller) arm more (Jensen), so it is safe only while the suspect is not the larger arm;
    otherwise the plain difference is used, which is unbiased at any sizes and sees less. Which arm is
    larger has to be known before the window, as it is from the weight.
    """
    if suspect_is_larger:
        return suspect.share - reference.share
    return (min(suspect.share, CAP) - min(reference.share, CAP)) / CAP


def slo_excess(suspect: Tail, reference: Tail | None, *, allowed: float, suspect_is_larger: bool) -> float:
    """By how much the suspect's share above a fixed limit exceeds what is allowed, -1 to 1; 0 < allowed < 1.

    The null is a union: the suspect keeps the limit (E[share] ≤ allowed), or it is no worse than the
    reference. Under either the mean of this is ≤ 0, as max(allowed, reference) is at least both. So a host
    that makes both arms slow takes nobody back. Without a reference only the limit counts. Capped at ten
    times what is allowed, under the same condition as `tail_difference`.
    """
    cap = min(1.0, 10.0 * allowed)
    if reference is None:
        return (min(suspect.share, cap) - allowed) / cap
    if suspect_is_larger:
        return suspect.share - max(allowed, reference.share)
    return (min(suspect.share, cap) - max(allowed, min(reference.share, cap))) / cap


def share_difference(
    suspect: float, reference: float, *, margin: float, usual: float, suspect_is_larger: bool
) -> float:
    """By how much a share in [0, 1] exceeds the reference plus a margin in [0, 1), -1 to 1.

    Capped as tails are, at CAP above what is `usual` for the reference, which has to be known before the
    window (1 where it is not).
    """
    if suspect_is_larger:
        return (suspect - reference - margin) / (1.0 + margin)
    cap = min(1.0, usual + CAP)
    return (min(suspect, cap + margin) - min(reference, cap) - margin) / (cap + margin)


def log_ratio(suspect: float, reference: float, *, span: float) -> float:
    """ln(reference/suspect) in units of `span`, clipped to [-1, 1]; both rates > 0.

    Positive where the suspect is the slower one. The null is stated in these terms: E[clipped log ratio | past] ≤ 0.
    """
    return min(max(math.log(reference / suspect) / span, -1.0), 1.0)

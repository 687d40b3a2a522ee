"""Did something happen to one arm more often than to the other, when the requests of a round share their mishaps?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def sign_flip_p(differences: Sequence[int]) -> float:
    """One-sided p-value against "in each round either arm was as likely as the other to be the worse one".

    `differences`: hits of the candidate less hits of the baseline, one per round. Exact: where the arms do not differ,
    each of the 2ⁿ ways of signing the n differences is as likely (Fisher, The Design of Experiments, 1935, section 21).
    So it is at least 1/2ⁿ, whatever happened within a round; n counts the rounds in which the arms differed.
    """
    sizes = [abs(value) for value in differences if value]
    worse_by = sum(value for value in differences if value > 0)
    chances = np.zeros(sum(sizes) + 1)  # of each sum of the positive differences
    chances[0] = 1.0
    for size in sizes:
        moved = np.concatenate([np.zeros(size), chances[:-size]])
        chances = (chances + moved) / 2
    return min(1.0, float(chances[worse_by:].sum()))

"""Where is the acceptance of one more round to be expected, with drafts as long as they were, or shorter ones?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from scipy.stats import t

from deploy.evidence.bootstrap import MIN_ROUNDS
from deploy.evidence.measured import MeasuredRequest
from deploy.evidence.pairing import PairedRound, Timed

SpanOf = tuple[float, float]
"""Low and high, shares of the drafted tokens."""


def predicted(values: Sequence[float]) -> SpanOf:
    """The 95 % prediction interval for one more value: mean ± t·s·√(1 + 1/n), cut to [0, 1].

    Unlike an interval for the mean it does not shrink to nothing, so that no real traffic would fit into it
    (Geisser, Predictive Inference, 1993, section 2.1).
    """
    count, mean = len(values), float(np.mean(values))
    reach = float(t.ppf(0.975, count - 1)) * float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / count)
    return max(0.0, mean - reach), min(1.0, mean + reach)


def round_means(rounds: Iterable[PairedRound], length: int | None = None) -> list[float]:
    """Of each round in which the candidate drafted: the mean over requests of accepted/drafted, by `share_at`."""
    shares = ([share_at(timed.request, length) for timed in _drafting(item)] for item in rounds)
    return [sum(values) / len(values) for values in shares if values]


def spans_by_length(rounds: Sequence[PairedRound]) -> tuple[SpanOf, ...]:
    """The prediction intervals had at most 1, 2, … tokens been drafted, up to the most that were accepted at once.

    Empty with less than `MIN_ROUNDS` rounds in which something was drafted.
    """
    if len(round_means(rounds)) < MIN_ROUNDS:
        return ()
    counts = [timed.request.rounds_by_accepted for item in rounds for timed in _drafting(item)]
    longest = max((_most_accepted(count) for count in counts), default=0)
    return tuple(predicted(round_means(rounds, length)) for length in range(1, longest + 1))


def share_at(request: MeasuredRequest, length: int | None) -> float:
    """accepted/drafted of a request that drafted, had at most `length` tokens been drafted in a round.

    A round that accepted a of d tokens accepts min(a, length) of min(d, length): acceptance is of a prefix. Only the
    sum of all d is known, so they count as equal: exact where every draft was at least, or at most, `length` long.
    """
    rounds = sum(request.rounds_by_accepted)
    if length is None or not rounds:
        return request.accepted / request.drafted
    accepted = sum(min(reached, length) * count for reached, count in enumerate(request.rounds_by_accepted))
    return accepted / min(request.drafted, length * rounds)


def _drafting(item: PairedRound) -> Iterator[Timed]:
    return (timed for timed in item.candidate_requests if timed.request.has_drafts)


def _most_accepted(rounds_by_accepted: Sequence[int]) -> int:
    return max((reached for reached, count in enumerate(rounds_by_accepted) if count), default=0)

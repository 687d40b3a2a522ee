"""Between which bounds does a rate or a quantile lie, at every look at once?"""

from __future__ import annotations

import itertools
import math

from scipy.optimize import brentq
from scipy.special import betaln

from fleet.histogram import LogHistogram

_EDGE = 1e-12
_QUANTILE_PRIOR = 60.0
"""Weight of the Beta prior around the quantile; narrowest near 500 to 1,000 samples."""


def mean_interval(total: float, count: float, alpha: float) -> tuple[float, float] | None:
    """Confidence sequence for the mean of values in [0, 1] whose sum is `total`; None without values.

    All p with B(1/2 + S, 1/2 + n - S)/B(1/2, 1/2) < p^S (1 - p)^(n - S)/alpha: Robbins' mixture. It holds
    for every n at once with probability 1 - alpha, for proportions and, since values in [0, 1] are
    sub-Bernoulli, for any such values (Howard, Ramdas, McAuliffe, Sekhon, arXiv 1810.08240, section 4).
    """
    if count <= 0:
        return None
    total = min(max(total, 0.0), count)
    bound = float(betaln(0.5 + total, 0.5 + count - total) - betaln(0.5, 0.5)) + math.log(alpha)

    def excess(p: float) -> float:
        return bound - total * math.log(p) - (count - total) * math.log1p(-p)

    mean = min(max(total / count, _EDGE), 1.0 - _EDGE)
    lower = 0.0 if excess(_EDGE) <= 0 else float(brentq(excess, _EDGE, mean))
    upper = 1.0 if excess(1.0 - _EDGE) <= 0 else float(brentq(excess, mean, 1.0 - _EDGE))
    return lower, upper


def quantile_interval(
    histogram: LogHistogram, q: float, count: float, alpha: float
) -> tuple[float | None, float | None] | None:
    """Confidence sequence for the q-quantile of the values in a histogram; None at an end means unbounded.

    All x at which the number S of values ≤ x could still be a Binomial(n, q) one: the Beta-Binomial
    mixture B(a + S, b + n - S)/B(a, b) < q^S (1 - q)^(n - S)/alpha with a = q v, b = (1 - q) v (Howard &
    Ramdas, Bernoulli 28(3), 2022, arXiv 1906.09712, Theorem 1). `count` is the number n of independent
    samples behind the histogram, such as requests where it holds tokens: treating the tokens of a
    request as one sample is the careful end. Values are exact to the bucket.
    """
    if count <= 0 or histogram.total == 0:
        return None

    def excess(below: float) -> float:
        return _excess(below, count, q, alpha)

    middle = q * count
    lower = None if excess(0.0) <= 0 else histogram.quantile(float(brentq(excess, 0.0, middle)) / count)
    upper = None if excess(count) <= 0 else histogram.quantile(float(brentq(excess, middle, count)) / count)
    return lower, upper


def samples_to_bound(q: float, alpha: float) -> int:
    """The fewest samples with which `quantile_interval` bounds a q-quantile, q > 1/2, from above as well as below."""
    return next(count for count in itertools.count(1) if _excess(count, count, q, alpha) > 0)


def _excess(below: float, count: float, q: float, alpha: float) -> float:
    """Logarithm by which the mixture exceeds the likelihood of q over alpha; positive where q is ruled out."""
    a, b = q * _QUANTILE_PRIOR, (1.0 - q) * _QUANTILE_PRIOR
    mixture = float(betaln(a + below, b + count - below)) + (math.log(alpha) - float(betaln(a, b)))
    return mixture - below * math.log(q) - (count - below) * math.log1p(-q)

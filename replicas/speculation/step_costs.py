"""What a step costs, apart for each size of batch: learned from the steps that were run."""

from __future__ import annotations

from dataclasses import dataclass, field

SLOW = 1.5
"""Times what was expected: a step beyond that is an outlier, or the first of many."""
OUTLIER_EVERY = 16
"""Observations of which one may be taken for an outlier; were it more, steps that are often slow would seem fast."""


@dataclass(frozen=True, slots=True)
class Line:
    """`fixed + slope * size` seconds. Neither term is negative."""

    fixed: float
    slope: float

    def at(self, size: float) -> float:
        return self.fixed + self.slope * size


@dataclass(slots=True)
class LineFit:
    """A straight line that follows the present load: `base * (1 + price * size)` seconds.

    The base follows the last few dozen steps. The price compares each step with these alone and is remembered for some
    hundreds, so a machine that gets slower is not mistaken for sizes that got dearer, and steps of a rare size count.
    Both are least squares with exponential forgetting: a factor is the weight that one step leaves to all before it.
    """

    base_forgetting: float = 0.96
    price_forgetting: float = 0.998
    steadiness: float = 1.0
    """Steps' worth of doubt: the price stays near 0 while all sizes were alike and nothing is known of it."""
    observations: int = field(default=0, init=False)
    _weight: float = field(default=0.0, init=False)
    _size: float = field(default=0.0, init=False)
    """Weighted mean of the sizes, as below of the seconds."""
    _seconds: float = field(default=0.0, init=False)
    _spread: float = field(default=0.0, init=False)
    """Weighted sum of squared deviations of the sizes."""
    _joint: float = field(default=0.0, init=False)
    """The same of deviations of sizes times those of the seconds, as shares of the base."""
    _since_outlier: int = field(default=OUTLIER_EVERY, init=False)

    def observe(self, size: float, seconds: float) -> None:
        """Learn from one step of size >= 0 that took `seconds`; an outlier teaches nothing."""
        known = self.line()
        self.observations += 1
        if self._is_outlier(known.at(size), seconds):
            return
        self._weight = self._weight * self.base_forgetting + 1.0
        size_off = size - self._size
        self._size += size_off / self._weight
        self._seconds += (seconds - self._seconds) / self._weight
        self._spread = self._spread * self.price_forgetting + size_off * (size - self._size)
        self._joint *= self.price_forgetting
        if known.fixed > 0.0:
            self._joint += size_off * (seconds - self._seconds) / known.fixed

    def line(self) -> Line:
        """The present fit; before the first observation everything seems free."""
        price = max(0.0, self._joint / (self._spread + self.steadiness))
        base = self._seconds / (1.0 + price * self._size)
        return Line(base, base * price)

    def _is_outlier(self, expected: float, seconds: float) -> bool:
        self._since_outlier += 1
        is_outlier = 0.0 < SLOW * expected < seconds and self._since_outlier > OUTLIER_EVERY
        if is_outlier:
            self._since_outlier = 0
        return is_outlier


ENOUGH_DRAFTS = 4
"""Rounds, long and short ones, from which it is known what drafting takes; one alone may be an outlier."""
ENOUGH_PLAIN_STEPS = 3
"""Steps without a draft from which it is known what they take."""


@dataclass(slots=True)
class BatchCosts:
    """Of steps of batches of about one size.

    What is learned in a large batch says little of a small one: a level of drafts takes longer there, and beside its
    rows every sequence costs the target something of its own. Where nothing is drafted nothing would put it right.
    """

    target: LineFit = field(default_factory=LineFit)
    """By drafted rows for each sequence, so that batches of 5 and of 8 sequences lie on one line."""
    draft: LineFit = field(default_factory=lambda: LineFit(0.98, 0.98))
    """By levels beyond the first. One that drafts ahead is now ready and now not, so its base is a longer mean."""
    plain_steps: int = 0

    def observe_target(self, drafted: float, seconds: float) -> None:
        """A step with so many drafted rows for each sequence."""
        self.plain_steps += drafted == 0
        self.target.observe(drafted, seconds)

    def observe_draft(self, depth: int, seconds: float) -> None:
        """A round of drafts of up to `depth` >= 1 levels."""
        self.draft.observe(depth - 1, seconds)

    def lesson(self, longest: int) -> int | None:
        """How much to draft next to learn what it costs: by turns much and little, then nothing. None: it is known."""
        if self.draft.observations < ENOUGH_DRAFTS:
            return min(1, longest) if self.draft.observations % 2 else longest
        return 0 if self.plain_steps < ENOUGH_PLAIN_STEPS else None

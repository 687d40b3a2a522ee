"""What would the rules that people write by hand have done with the same stream?"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import mannwhitneyu

from deploy.bench.judge_traffic import SLICE_SECONDS, Slice, Values
from fleet.histogram import LogHistogram

_MINUTE = round(60 / SLICE_SECONDS)


@dataclass(slots=True)
class Threshold:
    """Alarm when the canary's p95 of the last minute exceeds 1.1 times stable's for 60 s, asked every 10 s."""

    recent: deque[Slice] = field(default_factory=lambda: deque(maxlen=_MINUTE))
    breaches: int = 0

    def alarms(self, item: Slice) -> bool:
        self.recent.append(item)
        if len(self.recent) < _MINUTE:
            return False
        stable, canary = LogHistogram(), LogHistogram()
        for seen in self.recent:
            stable.merge(seen.stable.itl)
            canary.merge(seen.canary.itl)
        p_stable, p_canary = stable.quantile(0.95), canary.quantile(0.95)
        is_breach = p_stable is not None and p_canary is not None and p_canary > 1.1 * p_stable
        self.breaches = self.breaches + 1 if is_breach else 0
        return self.breaches >= _MINUTE


@dataclass(slots=True)
class RankTest:
    """Alarm when, asked each minute, the requests of the last five minutes differ by Mann-Whitney at 5 %."""

    recent: deque[Slice] = field(default_factory=lambda: deque(maxlen=5 * _MINUTE))
    asked: int = 0

    def alarms(self, item: Slice) -> bool:
        self.recent.append(item)
        self.asked += 1
        if self.asked % _MINUTE or len(self.recent) < 5 * _MINUTE:
            return False
        stable = _joined([seen.stable_means for seen in self.recent])
        canary = _joined([seen.canary_means for seen in self.recent])
        if len(stable) < 2 or len(canary) < 2:
            return False
        return bool(mannwhitneyu(canary, stable, alternative="greater").pvalue < 0.05)


def _joined(parts: list[Values]) -> Values:
    return np.concatenate(parts)

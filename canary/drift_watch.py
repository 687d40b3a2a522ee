"""Watches, at a slow rate, whether the evidence of the rollout that serves still holds."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from canary.drift import EVERYTHING, Accepted, Drift, LiveTraffic, drifts
from canary.evidence import MatrixEvidence
from canary.fleet_view import FleetView
from canary.rollout_state import Rollout, State
from fleet.traffic import Eligibility, PathTally, SamplingMode
from fleet.traffic_kinds import sampling_of

LOOK_SECONDS = 1.0
JUDGE_SECONDS = 15.0
SPAN_SECONDS = 1800.0
"""What is judged are the requests of so long; older ones are forgotten."""


@dataclass(frozen=True, slots=True)
class _Totals:
    """Counters since ever, at one moment."""

    at: float
    kinds: Counter[str]
    acceptance: Mapping[SamplingMode, tuple[float, int]]
    """Sum over requests of accepted/drafted, and how many they are."""


class DriftWatch:
    """Keeps what was seen since the rollout's evidence came into use, and what that says about it."""

    def __init__(self) -> None:
        self.evidence: MatrixEvidence | None = None
        """Of the rollout that serves."""
        self.canary = ""
        self.drifts: tuple[Drift, ...] = ()
        self._rule: Eligibility | None = None
        self._totals: deque[_Totals] = deque()
        self._looks: deque[tuple[float, int]] = deque()

    def tick(self, now: float, rollout: Rollout | None, served: Mapping[str, PathTally], view: FleetView) -> None:
        """Look around; cheap enough for every tick of the controller."""
        evidence, rule = _in_use(rollout), _rule_of(rollout)
        if evidence is not self.evidence or rule != self._rule:
            self.evidence, self.drifts, self._rule = evidence, (), rule
            self.canary = rollout.plan.canary if rollout is not None else ""
            self._totals.clear()
            self._looks.clear()
        if evidence is None:
            return
        if not self._looks or now - self._looks[-1][0] >= LOOK_SECONDS:
            self._looks.append((now, view.typical_in_flight(self.canary)))
        if not self._totals or now - self._totals[-1].at >= JUDGE_SECONDS:
            self._totals.append(_totals(now, served, self.canary))
            self._forget(now)
            self.drifts = drifts(evidence, self._live(view), self._rule or EVERYTHING)

    def _forget(self, now: float) -> None:
        """Keep one sample from before the span, so that the span is covered."""
        while len(self._totals) > 2 and now - self._totals[1].at >= SPAN_SECONDS:
            self._totals.popleft()
        while self._looks and now - self._looks[0][0] > SPAN_SECONDS:
            self._looks.popleft()

    def _live(self, view: FleetView) -> LiveTraffic:
        first, last = self._totals[0], self._totals[-1]
        acceptance = {}
        for sampling, (total, count) in last.acceptance.items():
            before, counted = first.acceptance.get(sampling, (0.0, 0))
            if count > counted:
                acceptance[sampling] = Accepted((total - before) / (count - counted), count - counted)
        return LiveTraffic(
            kinds=last.kinds - first.kinds if self._rule is not None else {},
            acceptance=acceptance,
            open_requests=[look for _, look in self._looks],
            fingerprints=view.fingerprints(),
        )


def _in_use(rollout: Rollout | None) -> MatrixEvidence | None:
    if rollout is None or rollout.state in (State.ROLLED_BACK, State.ABORTED):
        return None
    return rollout.plan.matrix


def _rule_of(rollout: Rollout | None) -> Eligibility | None:
    """Which requests routers count as traffic that the evidence is about; None while they count others as well.

    Before there is a canary they know no rule, and once its path has become the stable one it serves all.
    """
    if rollout is None:
        return None
    if rollout.is_final:
        return EVERYTHING
    is_known = rollout.state is not State.PREPARING or rollout.plan.eligible.rule() == EVERYTHING
    return rollout.plan.eligibility() if is_known else None


def _totals(now: float, served: Mapping[str, PathTally], canary: str) -> _Totals:
    kinds: Counter[str] = Counter()
    for tally in served.values():
        kinds.update(tally.kinds)
    acceptance: dict[SamplingMode, tuple[float, int]] = {}
    for stratum, histogram in served.get(canary, PathTally()).acceptance_by.items():
        sampling = SamplingMode(sampling_of(stratum))
        total, count = acceptance.get(sampling, (0.0, 0))
        # The histogram holds 1 + accepted/drafted.
        acceptance[sampling] = (total + histogram.sum - histogram.total, count + histogram.total)
    return _Totals(now, kinds, acceptance)

"""Does the evidence still speak of the traffic that comes? Its mix, what is accepted, and how much is open at once."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from scipy.stats import chi2

from canary.evidence import MatrixEvidence, Span, changes
from fleet.traffic import Eligibility, SamplingMode
from fleet.traffic_kinds import sampling_of, shortest_prompt

PSI_LIMIT = 0.25
"""Above it a distribution counts as another one (Siddiqi, Credit Risk Scorecards, 2006)."""
CHANCE = 0.001
"""Of a mix that did not change exceeding what is tolerated of so few requests."""
FEWEST_REQUESTS = 100
"""Of a sampling mode, before anything is said of it."""
FEWEST_LOOKS = 60
SELDOM = 0.05
"""Share of the looks in which more may be open than was measured."""
UNSEEN = 0.5
"""Added to the count of each kind, so that one that did not occur has a logarithm."""
EVERYTHING = Eligibility()
"""The rule that admits every request."""


class Reason(StrEnum):
    """Why evidence is stale."""

    FLEET = "fleet"
    TRAFFIC_MIX = "traffic_mix"
    ACCEPTANCE = "acceptance"
    CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True)
class Drift:
    """One reason, in words and numbers."""

    reason: Reason
    detail: str
    value: float | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The mean over requests of accepted/drafted, and over how many."""

    mean: float
    requests: int


@dataclass(frozen=True, slots=True)
class LiveTraffic:
    """What was seen over the last while."""

    kinds: Mapping[str, int] = field(default_factory=dict)
    """Completed requests by `kind_of`, of those that the rollout's rule admits under some load."""
    acceptance: Mapping[SamplingMode, Accepted] = field(default_factory=dict)
    open_requests: Sequence[int] = ()
    """Looks at how much was open on the canary's path."""
    fingerprints: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By path; of paths with replicas."""


def drifts(evidence: MatrixEvidence, live: LiveTraffic, rule: Eligibility = EVERYTHING) -> tuple[Drift, ...]:
    """Every reason for which the evidence no longer holds; empty while nothing speaks against it.

    `rule`: what the canary serves. With cells, those that the evidence keeps, and in each it drafts as much as pays.
    """
    changed = changes(evidence.fingerprints, live.fingerprints)
    where_it_wins = rule.cells is not None
    return (
        *((Drift(Reason.FLEET, "; ".join(changed), float(len(changed)), 0.0),) if changed else ()),
        *(_mix_drifts(_served(evidence.kinds, rule), _served(live.kinds, rule)) if evidence.kinds else ()),
        *_acceptance_drifts(evidence.expected_acceptance(where_it_wins=where_it_wins), live.acceptance),
        *_concurrency_drifts(evidence.peak_open, live.open_requests),
    )


def psi(expected: Mapping[str, int], seen: Mapping[str, int]) -> float:
    """Population stability index Σ (s − e)·ln(s/e) over all kinds, of shares smoothed by `UNSEEN` per kind."""
    kinds = expected.keys() | seen.keys()
    totals = [sum(counts.values()) + UNSEEN * len(kinds) for counts in (expected, seen)]
    shares = (
        ((expected.get(kind, 0) + UNSEEN) / totals[0], (seen.get(kind, 0) + UNSEEN) / totals[1])
        for kind in sorted(kinds)
    )
    return sum((now - was) * math.log(now / was) for was, now in shares)


def psi_limit(expected: Mapping[str, int], seen: Mapping[str, int]) -> float:
    """The usual limit, or what chance makes of so few requests: χ²(kinds − 1)·(1/n + 1/m).

    Yurdakul & Naranjo, Statistical properties of the population stability index, 2020, section 3.
    """
    freedom = max(1, len(expected.keys() | seen.keys()) - 1)
    noise = 1 / max(1, sum(expected.values())) + 1 / max(1, sum(seen.values()))
    return max(PSI_LIMIT, float(chi2.isf(CHANCE, freedom)) * noise)


def _mix_drifts(expected: Mapping[str, int], seen: Mapping[str, int]) -> list[Drift]:
    """Within each sampling mode, as a matrix measures each by itself whatever its share of the traffic."""
    was, now = _by_sampling(expected), _by_sampling(seen)
    found = []
    for sampling, counts in sorted(now.items()):
        requests = sum(counts.values())
        if requests < FEWEST_REQUESTS:
            continue
        if sampling not in was:
            advice = "add them to the matrix, or leave them out of the plan's eligible"
            detail = f"{sampling} requests were never measured, {requests} came: {advice}"
            found.append(Drift(Reason.TRAFFIC_MIX, detail))
            continue
        value, limit = psi(was[sampling], counts), psi_limit(was[sampling], counts)
        if value > limit:
            detail = f"PSI {value:.2f} of {sampling} requests is above {limit:.2f}; {_moved(was[sampling], counts)}"
            found.append(Drift(Reason.TRAFFIC_MIX, detail, value, limit))
    return found


def _served(kinds: Mapping[str, int], rule: Eligibility) -> dict[str, int]:
    """The kinds of which the canary may get a request: of a mode with a cell, and with prompts that are short enough.

    Traffic is counted by the rule, but not by its cells; and a matrix may have asked longer prompts than it admits.
    """
    modes = frozenset(SamplingMode) if rule.cells is None else {cell.sampling for cell in rule.cells}
    longest = math.inf if rule.max_prompt_tokens is None else rule.max_prompt_tokens
    return {
        kind: count for kind, count in kinds.items() if sampling_of(kind) in modes and shortest_prompt(kind) <= longest
    }


def _moved(was: Mapping[str, int], now: Mapping[str, int]) -> str:
    """The kind whose share changed most."""

    def share(counts: Mapping[str, int], kind: str) -> float:
        return counts.get(kind, 0) / sum(counts.values())

    kind = max(sorted(was.keys() | now.keys()), key=lambda kind: abs(share(now, kind) - share(was, kind)))
    return f"{kind} went from {share(was, kind):.0%} to {share(now, kind):.0%}"


def _by_sampling(counts: Mapping[str, int]) -> dict[str, Counter[str]]:
    modes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for kind, count in counts.items():
        modes[sampling_of(kind)][kind] += count
    return dict(modes)


def _acceptance_drifts(
    expected: Mapping[SamplingMode, Sequence[Span]], seen: Mapping[SamplingMode, Accepted]
) -> list[Drift]:
    """Outside of everything that is expected of a mode: which of its cells the requests were in is not known."""
    found = []
    for sampling, spans in sorted(expected.items()):
        now = seen.get(sampling)
        low, high = min(span.low for span in spans), max(span.high for span in spans)
        if now is None or now.requests < FEWEST_REQUESTS or low <= now.mean <= high:
            continue
        detail = (
            f"{now.mean:.1%} of the drafts of {sampling} requests are accepted, measured were {low:.1%} to {high:.1%}"
        )
        found.append(Drift(Reason.ACCEPTANCE, detail, now.mean, low if now.mean < low else high))
    return found


def _concurrency_drifts(peak: int | None, looks: Sequence[int]) -> list[Drift]:
    if peak is None or len(looks) < FEWEST_LOOKS:
        return []
    above = sum(look > peak for look in looks) / len(looks)
    if above <= SELDOM:
        return []
    detail = f"more than the {peak} requests that were measured are open {above:.0%} of the time, up to {max(looks)}"
    return [Drift(Reason.CONCURRENCY, detail, float(max(looks)), float(peak))]

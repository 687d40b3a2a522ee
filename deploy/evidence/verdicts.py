"""Is a cell, or a bucket, to be kept, dropped, or neither? Decided from paired effects and guards, over all at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from deploy.evidence.bootstrap import MIN_ROUNDS, MOST_ROUNDS, Interval, PairedEffect, rounds_needed
from deploy.evidence.cell_evidence import CellEvidence
from deploy.evidence.claims import Claims, Effects, Levels, corrected, resamples_for
from deploy.evidence.config import JudgeConfig
from deploy.evidence.guards import Guard, GuardState, guards_of


class Decision(StrEnum):
    """KEEP and DROP are claims with a controlled error; REFUSED measured something else than the server."""

    KEEP = "keep"
    DROP = "drop"
    INCONCLUSIVE = "inconclusive"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """The verdict on one cell, or on one bucket of it."""

    decision: Decision
    reason: str
    gain: Interval | None
    """Of the objective, as a ratio with its own 95 % interval: above 1 the candidate is better."""
    p_better: float | None
    """P-value of what a keep claims (the gain, TTFT and throughput, at once), corrected: above alpha it is no keep."""
    p_worse: float | None
    """P-value of a loss in the objective, corrected likewise."""
    guards: tuple[Guard, ...]


def judge_cells(cells: Sequence[CellEvidence], rules: JudgeConfig, seed: int) -> list[CellVerdict]:
    """The verdicts on one family of claims (all cells, or all buckets), in the given order.

    The chance that any keep or drop is false is at most alpha over the family (`deploy.evidence.claims`). What is
    refused claims nothing and costs the others nothing.
    """
    refusals = [_refusal(cell, rules) for cell in cells]
    resamples = resamples_for(refusals.count(None), rules.alpha)
    effects = [Effects.of(cell, seed, resamples) for cell in cells]
    claims = [
        Claims.of(cell, effect, rules)
        for cell, effect, refusal in zip(cells, effects, refusals, strict=True)
        if refusal is None
    ]
    levels = Levels.of(claims, rules.alpha)
    claimed = zip(claims, corrected(claims), strict=True)
    return [
        _refused(effect, refusal) if refusal is not None else _judge(cell, effect, next(claimed), levels, rules)
        for cell, effect, refusal in zip(cells, effects, refusals, strict=True)
    ]


def provisional(verdict: CellVerdict, rounds_done: int, rounds_planned: int) -> CellVerdict:
    """The verdict while rounds are still to come: to stop where it looks good would void what a claim promises."""
    if rounds_done >= rounds_planned or verdict.decision not in (Decision.KEEP, Decision.DROP):
        return verdict
    reason = (
        f"provisional after {rounds_done} of {rounds_planned} rounds; it would be {verdict.decision}, {verdict.reason}"
    )
    return replace(verdict, decision=Decision.INCONCLUSIVE, reason=reason)


def _refusal(cell: CellEvidence, rules: JudgeConfig) -> str | None:
    """Why the cell measured something else than the server, if it did."""
    if not cell.has_content:
        return (
            "the requests have the lengths of a trace but no text of their own, and what is accepted of a draft "
            "depends on the text: give prompts or captured requests"
        )
    if cell.remembers:
        return (
            "a path drafts from answers that it has given before, and a matrix asks for the same ones again and again: "
            "measure with suffix_decoding_max_cached_requests: 0"
        )
    if cell.client_lag_share is not None and cell.client_lag_share > rules.max_client_lag:
        return (
            f"the client was the bottleneck: it woke up late by {cell.client_lag_share:.0%} of a token's time "
            f"(at most {rules.max_client_lag:.0%}); run it on another machine or lower the load"
        )
    return None


def _refused(effects: Effects, reason: str) -> CellVerdict:
    return CellVerdict(Decision.REFUSED, reason, _gain(effects), None, None, ())


def _judge(
    cell: CellEvidence,
    effects: Effects,
    claimed: tuple[Claims, tuple[float, float]],
    levels: Levels,
    rules: JudgeConfig,
) -> CellVerdict:
    """`claimed`: what could be claimed of the cell, and the p-values that are shown."""
    claims, p_values = claimed
    guards = guards_of(cell, effects, claims, levels, rules)
    missing = _what_is_missing(cell, effects.objective, rules, levels)
    decision, reason = _decide(effects.objective, claims, guards, levels, missing)
    return CellVerdict(decision, reason, _gain(effects), *p_values, guards)


def _gain(effects: Effects) -> Interval | None:
    return None if effects.objective is None else effects.objective.ratio()


def _decide(
    effect: PairedEffect | None, claims: Claims, guards: Sequence[Guard], levels: Levels, missing: str
) -> tuple[Decision, str]:
    failed = [guard.text for guard in guards if guard.state is GuardState.FAILS]
    if effect is None:
        return (Decision.DROP, "worse: " + "; ".join(failed)) if failed else (Decision.INCONCLUSIVE, missing)
    seen = effect.ratio()
    measured = f"{seen.estimate:.2f}× (95 % {seen.low:.2f} – {seen.high:.2f})"
    if failed:
        return Decision.DROP, f"worse: {'; '.join(failed)}, at {measured}"
    if claims.slower <= levels.worse:
        return Decision.DROP, f"slower: {measured}"
    if claims.faster > levels.keep:
        return Decision.INCONCLUSIVE, f"{measured}: {missing}"
    withheld = [guard.text for guard in guards if guard.state is GuardState.NOT_SHOWN]
    if withheld:
        return Decision.INCONCLUSIVE, f"faster, {measured}, but not shown to be harmless: " + "; ".join(withheld)
    return Decision.KEEP, f"faster: {measured}"


def _what_is_missing(cell: CellEvidence, effect: PairedEffect | None, rules: JudgeConfig, levels: Levels) -> str:
    """What would turn an inconclusive objective into a claim."""
    if effect is None:
        return _too_few(cell)
    least = math.log1p(rules.min_effect)
    if 0.0 <= effect.mean <= least:
        return f"no loss is shown, and a gain above {rules.min_effect:.0%} is not in sight"
    if effect.mean > least:
        needed = rounds_needed(effect, effect.mean - least, levels.keep)
    else:
        needed = rounds_needed(effect, effect.mean, levels.worse)
    if needed is None or (planned := _rounds_with(needed, effect.rounds, cell)) > MOST_ROUNDS:
        return "too close to call with any sensible number of rounds"
    return f"too few rounds for so many claims; if it stays like this, about {planned} would tell"


def _too_few(cell: CellEvidence) -> str:
    least = f"less than {MIN_ROUNDS} rounds are too few to claim anything"
    seen = len(cell.objective)
    if seen == 0:
        return f"no request that both arms completed; {least}"
    if cell.rounds < MIN_ROUNDS:
        return least
    return (
        f"{seen} of {cell.rounds} rounds have such a request; {least}, and about "
        f"{_rounds_with(MIN_ROUNDS, seen, cell)} would have so many"
    )


def _rounds_with(needed: int, seen: int, cell: CellEvidence) -> int:
    """How many rounds a matrix needs so that `needed` of them have a value, where `seen` of those measured had one."""
    return math.ceil(needed * cell.rounds / seen)

"""Is a cell to be kept, dropped, or neither? Decided from paired effects and guards, over all cells at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from deploy.evidence.bootstrap import MIN_ROUNDS, Interval, PairedEffect, holm, rounds_needed
from deploy.evidence.cell_evidence import CellEvidence
from deploy.evidence.config import JudgeConfig
from deploy.evidence.guards import (
    Guard,
    GuardState,
    count_guards,
    fact_guards,
    harm_p,
    least_throughput,
    throughput_guard,
    ttft_guard,
)


class Decision(StrEnum):
    """KEEP and DROP are claims with a controlled error; REFUSED measured something else than the server."""

    KEEP = "keep"
    DROP = "drop"
    INCONCLUSIVE = "inconclusive"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """The verdict on one cell."""

    decision: Decision
    reason: str
    gain: Interval | None
    """Of the objective, as a ratio with its own 95 % interval: above 1 the candidate is better."""
    p_better: float | None
    """Chance of so much gain if there were no more than the least that counts, corrected for all cells (Holm)."""
    p_worse: float | None
    guards: tuple[Guard, ...]


@dataclass(frozen=True, slots=True)
class _Effects:
    """None where there are too few rounds, or where the metric is not judged."""

    objective: PairedEffect | None
    ttft: PairedEffect | None
    ttft_room: PairedEffect | None
    throughput: PairedEffect | None


@dataclass(frozen=True, slots=True)
class _Claims:
    """One-sided p-values of what could be claimed about one cell."""

    better: float = 1.0
    worse: float = 1.0
    ttft_worse: float = 1.0
    throughput_worse: float = 1.0
    more_bad: float = 1.0
    more_degenerate: float = 1.0


_FAMILIES = (("better", "worse"), ("ttft_worse", "throughput_worse", "more_bad", "more_degenerate"))
"""Claims about the objective, and about guards: each family has its own chance alpha of any false claim."""


def judge_cells(cells: Sequence[CellEvidence], rules: JudgeConfig, seed: int) -> list[CellVerdict]:
    """The verdicts, in the order of the cells.

    The chance of any false "better by more than the least effect" or "worse" over all cells is at most alpha (Holm),
    and so is that of any false failure of a guard. A cell that is refused claims nothing and costs the others nothing.
    """
    effects = [_effects(cell, seed) for cell in cells]
    refusals = [_refusal(cell, rules) for cell in cells]
    raw = [
        _Claims() if refusal else _claims(cell, effect, rules)
        for cell, effect, refusal in zip(cells, effects, refusals, strict=True)
    ]
    corrected = _corrected(raw, [refusal is None for refusal in refusals])
    strictest = rules.alpha / (len(_FAMILIES[0]) * max(1, refusals.count(None)))
    return [
        _refused(effect, refusal) if refusal else _judge(cell, effect, claims, rules, strictest)
        for cell, effect, refusal, claims in zip(cells, effects, refusals, corrected, strict=True)
    ]


def _refusal(cell: CellEvidence, rules: JudgeConfig) -> str | None:
    """Why the cell measured something else than the server, if it did."""
    if not cell.has_content:
        return (
            "the requests have the lengths of a trace but no text of their own, and what is accepted of a draft "
            "depends on the text: give prompts or captured requests"
        )
    if cell.client_lag_share is not None and cell.client_lag_share > rules.max_client_lag:
        return (
            f"the client was the bottleneck: it woke up late by {cell.client_lag_share:.0%} of a token's time "
            f"(at most {rules.max_client_lag:.0%}); run it on another machine or lower the load"
        )
    return None


def _effects(cell: CellEvidence, seed: int) -> _Effects:
    gains = (cell.objective, cell.ttft, cell.ttft_room, cell.throughput)
    return _Effects(*(PairedEffect(values, seed) if len(values) >= MIN_ROUNDS else None for values in gains))


def _claims(cell: CellEvidence, effects: _Effects, rules: JudgeConfig) -> _Claims:
    def below(effect: PairedEffect | None, bound: float) -> float:
        return 1.0 if effect is None else effect.p_below(bound)

    return _Claims(
        better=1.0 if effects.objective is None else effects.objective.p_above(math.log1p(rules.min_effect)),
        worse=below(effects.objective, 0.0),
        ttft_worse=below(effects.ttft_room, 0.0),
        throughput_worse=below(effects.throughput, least_throughput(rules)),
        more_bad=harm_p(cell.bad),
        more_degenerate=harm_p(cell.degenerate),
    )


def _corrected(raw: Sequence[_Claims], counted: Sequence[bool]) -> list[_Claims]:
    """The claims with Holm's correction, within the objective's family and within the guards'."""
    fixed = list(raw)
    for family in _FAMILIES:
        places = [(row, name) for row, counts in enumerate(counted) if counts for name in family]
        adjusted = holm([getattr(raw[row], name) for row, name in places])
        for (row, name), p in zip(places, adjusted, strict=True):
            fixed[row] = replace(fixed[row], **{name: p})
    return fixed


def _refused(effects: _Effects, reason: str) -> CellVerdict:
    gain = None if effects.objective is None else effects.objective.ratio()
    return CellVerdict(Decision.REFUSED, reason, gain, None, None, ())


def _judge(cell: CellEvidence, effects: _Effects, claims: _Claims, rules: JudgeConfig, strictest: float) -> CellVerdict:
    guards = (
        ttft_guard(effects.ttft, effects.ttft_room, claims.ttft_worse, rules),
        *((throughput_guard(effects.throughput, claims.throughput_worse, rules),) if cell.throughput else ()),
        *count_guards(cell, rules, claims.more_bad, claims.more_degenerate),
        *fact_guards(cell, rules),
    )
    decision, reason = _decide(effects.objective, claims, guards, rules, strictest)
    gain = None if effects.objective is None else effects.objective.ratio()
    return CellVerdict(decision, reason, gain, claims.better, claims.worse, guards)


def _decide(
    effect: PairedEffect | None, claims: _Claims, guards: Sequence[Guard], rules: JudgeConfig, strictest: float
) -> tuple[Decision, str]:
    """`strictest`: the level at which Holm tests the first of all claims about the objective."""
    failed = [guard.text for guard in guards if guard.state is GuardState.FAILS]
    if effect is None:
        few = f"less than {MIN_ROUNDS} rounds are too few to claim anything"
        return (Decision.DROP, "worse: " + "; ".join(failed)) if failed else (Decision.INCONCLUSIVE, few)
    seen = effect.ratio()
    measured = f"{seen.estimate:.2f}× (95 % {seen.low:.2f} – {seen.high:.2f})"
    if failed:
        return Decision.DROP, f"worse: {'; '.join(failed)}, at {measured}"
    if claims.worse <= rules.alpha:
        return Decision.DROP, f"slower: {measured}"
    if claims.better > rules.alpha:
        return Decision.INCONCLUSIVE, f"{measured}: {_what_is_missing(effect, rules, strictest)}"
    withheld = [guard.text for guard in guards if guard.state is GuardState.NOT_SHOWN]
    if withheld:
        return Decision.INCONCLUSIVE, f"faster, {measured}, but not shown to be harmless: " + "; ".join(withheld)
    return Decision.KEEP, f"faster: {measured}"


def _what_is_missing(effect: PairedEffect, rules: JudgeConfig, strictest: float) -> str:
    """What would turn an inconclusive objective into a claim."""
    least = math.log1p(rules.min_effect)
    if 0.0 <= effect.mean <= least:
        return f"no loss is shown, and a gain above {rules.min_effect:.0%} is not in sight"
    distance = effect.mean - least if effect.mean > least else effect.mean
    needed = rounds_needed(effect, distance, strictest)
    if needed is None:
        return "too close to call with any sensible number of rounds"
    return f"too few rounds among so many cells; if it stays like this, about {needed} would tell"

"""What must not get worse when a candidate is kept, and did it?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from scipy.stats import fisher_exact

from deploy.evidence.bootstrap import PairedEffect
from deploy.evidence.cell_evidence import CellEvidence, Harm
from deploy.evidence.config import JudgeConfig

LEAST_ROUNDS_WORSE = 2
"""Requests of one round share its mishaps: what went wrong in a single round is no claim against the candidate."""


class GuardState(StrEnum):
    """FAILS is a claim; NOT_SHOWN only withholds a keep; UNMEASURED does neither, and is said."""

    HOLDS = "holds"
    UNMEASURED = "unmeasured"
    NOT_SHOWN = "not shown"
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class Guard:
    """What must not get worse, and whether it did."""

    name: str
    state: GuardState
    text: str


def harm_p(harm: Harm) -> float:
    """One-sided p-value against "it happens to the candidate no more often": Fisher's exact test."""
    before, after = harm.baseline, harm.candidate
    if harm.rounds_worse < LEAST_ROUNDS_WORSE or not (before.total and after.total):
        return 1.0
    table = [[after.hits, after.total - after.hits], [before.hits, before.total - before.hits]]
    return float(fisher_exact(table, alternative="greater").pvalue)


def ttft_guard(change: PairedEffect | None, room: PairedEffect | None, p_worse: float, rules: JudgeConfig) -> Guard:
    """The first token: within the allowed increase and slack. A keep needs all its guards, so none is corrected."""
    if change is None or room is None:
        return Guard("TTFT", GuardState.UNMEASURED, "TTFT: too few rounds")
    gain = change.ratio()
    text = f"TTFT {_changes(1 / gain.estimate, 1 / gain.high, 1 / gain.low)}"
    return Guard("TTFT", _limit_state(room, 0.0, p_worse, rules.alpha), text)


def throughput_guard(gain: PairedEffect | None, p_worse: float, rules: JudgeConfig) -> Guard:
    """Output tokens per second under the same number of open requests."""
    if gain is None:
        return Guard("throughput", GuardState.UNMEASURED, "throughput: too few rounds")
    seen = gain.ratio()
    text = f"throughput {_changes(seen.estimate, seen.low, seen.high)}"
    return Guard("throughput", _limit_state(gain, least_throughput(rules), p_worse, rules.alpha), text)


def least_throughput(rules: JudgeConfig) -> float:
    """The logarithmic gain in throughput below which it has become too little."""
    return math.log1p(-min(rules.max_throughput_decrease, 0.999))


def _limit_state(effect: PairedEffect, least: float, p_worse: float, alpha: float) -> GuardState:
    if p_worse <= alpha:
        return GuardState.FAILS
    return GuardState.HOLDS if effect.p_above(least) <= alpha else GuardState.NOT_SHOWN


def count_guards(cell: CellEvidence, rules: JudgeConfig, p_bad: float, p_degenerate: float) -> Iterator[Guard]:
    """Errors and answers that only repeat themselves."""
    yield _rare("errors", cell.bad, rules.max_error_increase, fails=p_bad <= rules.alpha)
    looping = _rare("repetition", cell.degenerate, rules.max_degenerate, fails=p_degenerate <= rules.alpha)
    most = max(cell.degenerate.baseline.share, cell.degenerate.candidate.share)
    if looping.state is GuardState.HOLDS and most > rules.max_degenerate:
        text = f"{most:.0%} of the answers repeat themselves, which makes drafting look too easy"
        looping = Guard("repetition", GuardState.NOT_SHOWN, text)
    yield looping


def fact_guards(cell: CellEvidence, rules: JudgeConfig) -> Iterator[Guard]:
    """Room in the KV cache, and equal answers."""
    yield _kv_headroom(cell, rules)
    equal = cell.greedy_equal
    if equal is not None:
        text = f"{equal.hits} of {equal.total} greedy answers equal the baseline's"
        shown = equal.total > 0 and equal.share >= rules.min_greedy_equal
        yield Guard("equal answers", GuardState.HOLDS if shown else GuardState.NOT_SHOWN, text)


def _kv_headroom(cell: CellEvidence, rules: JudgeConfig) -> Guard:
    name = "KV headroom"
    before, after = cell.kv_usage
    if before is None or after is None:
        return Guard(name, GuardState.UNMEASURED, "KV cache not measured")
    preempted = tuple(count or 0 for count in cell.preemptions)
    text = f"KV cache up to {before:.0%} → {after:.0%} full, preemptions {preempted[0]} → {preempted[1]}"
    is_tight = preempted[1] > preempted[0] or (after > rules.max_kv_usage >= before)
    return Guard(name, GuardState.NOT_SHOWN if is_tight else GuardState.HOLDS, text)


def _rare(name: str, harm: Harm, allowed: float, *, fails: bool) -> Guard:
    before, after = harm.baseline, harm.candidate
    text = f"{name} {before.hits}/{before.total} → {after.hits}/{after.total}"
    if fails:
        return Guard(name, GuardState.FAILS, text)
    is_fine = after.share - before.share <= allowed
    return Guard(name, GuardState.HOLDS if is_fine else GuardState.NOT_SHOWN, text)


def _changes(estimate: float, low: float, high: float) -> str:
    return f"{estimate - 1:+.0%} (95 % {low - 1:+.0%} to {high - 1:+.0%})"

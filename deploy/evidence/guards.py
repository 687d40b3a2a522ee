"""What must not get worse when a candidate is kept, and did it?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from deploy.evidence.cell_evidence import CellEvidence, Counts, Harm
from deploy.evidence.claims import Claims, Effects, Levels
from deploy.evidence.config import JudgeConfig


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


def guards_of(
    cell: CellEvidence, effects: Effects, claims: Claims, levels: Levels, rules: JudgeConfig
) -> tuple[Guard, ...]:
    """All guards of one cell."""
    return tuple(_guards(cell, effects, claims, levels, rules))


def _guards(
    cell: CellEvidence, effects: Effects, claims: Claims, levels: Levels, rules: JudgeConfig
) -> Iterator[Guard]:
    yield Guard("TTFT", _limit_state(claims.ttft_holds, claims.ttft_worse, levels), _ttft_text(effects))
    if claims.throughput_worse is not None:
        state = _limit_state(claims.throughput_holds, claims.throughput_worse, levels)
        yield Guard("throughput", state, _throughput_text(effects))
    yield _errors(cell, rules, _is_claimed(claims.more_bad, levels))
    yield _repetition(cell.degenerate, rules, _is_claimed(claims.more_degenerate, levels))
    yield _kv_headroom(cell, rules)
    if cell.greedy_equal is not None:
        yield _equal_answers(cell.greedy_equal, rules)


def _limit_state(p_holds: float, p_worse: float, levels: Levels) -> GuardState:
    if p_worse <= levels.worse:
        return GuardState.FAILS
    return GuardState.HOLDS if p_holds <= levels.keep else GuardState.NOT_SHOWN


def _is_claimed(p_harm: float | None, levels: Levels) -> bool:
    return p_harm is not None and p_harm <= levels.harm


def _ttft_text(effects: Effects) -> str:
    if effects.ttft is None:
        return "TTFT: too few rounds"
    gain = effects.ttft.ratio()
    return f"TTFT {_changes(1 / gain.estimate, 1 / gain.high, 1 / gain.low)}"


def _throughput_text(effects: Effects) -> str:
    if effects.throughput is None:
        return "throughput: too few rounds"
    gain = effects.throughput.ratio()
    return f"throughput {_changes(gain.estimate, gain.low, gain.high)}"


def _errors(cell: CellEvidence, rules: JudgeConfig, fails: bool) -> Guard:
    """Requests that an arm did not answer, or that another replica than the one that began them did."""
    guard = _rare("errors", cell.bad, rules.max_error_increase, fails)
    before, after = cell.fallbacks
    if not before and not after:
        return guard
    return replace(guard, text=f"{guard.text} (lost by a replica and finished by another: {before} → {after})")


def _repetition(harm: Harm, rules: JudgeConfig, fails: bool) -> Guard:
    """Answers that only repeat themselves."""
    looping = _rare("repetition", harm, rules.max_degenerate, fails)
    most = max(harm.baseline.share, harm.candidate.share)
    if looping.state is GuardState.HOLDS and most > rules.max_degenerate:
        text = f"{most:.0%} of the answers repeat themselves, which makes drafting look too easy"
        return Guard("repetition", GuardState.NOT_SHOWN, text)
    return looping


def _equal_answers(equal: Counts, rules: JudgeConfig) -> Guard:
    text = f"{equal.hits} of {equal.total} greedy answers equal the baseline's"
    is_shown = equal.total > 0 and equal.share >= rules.min_greedy_equal
    return Guard("equal answers", GuardState.HOLDS if is_shown else GuardState.NOT_SHOWN, text)


def _kv_headroom(cell: CellEvidence, rules: JudgeConfig) -> Guard:
    name = "KV headroom"
    before, after = cell.kv_usage
    if before is None or after is None:
        return Guard(name, GuardState.UNMEASURED, "KV cache not measured")
    preempted = tuple(count or 0 for count in cell.preemptions)
    text = f"KV cache up to {before:.0%} → {after:.0%} full, preemptions {preempted[0]} → {preempted[1]}"
    is_tight = preempted[1] > preempted[0] or (after > rules.max_kv_usage >= before)
    return Guard(name, GuardState.NOT_SHOWN if is_tight else GuardState.HOLDS, text)


def _rare(name: str, harm: Harm, allowed: float, fails: bool) -> Guard:
    before, after = harm.baseline, harm.candidate
    text = f"{name} {before.hits}/{before.total} → {after.hits}/{after.total}"
    if fails:
        return Guard(name, GuardState.FAILS, text)
    is_fine = after.share - before.share <= allowed
    return Guard(name, GuardState.HOLDS if is_fine else GuardState.NOT_SHOWN, text)


def _changes(estimate: float, low: float, high: float) -> str:
    return f"{estimate - 1:+.0%} (95 % {low - 1:+.0%} to {high - 1:+.0%})"

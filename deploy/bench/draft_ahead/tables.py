"""Tables of what was measured and simulated about draft-ahead, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from deploy.bench.draft_ahead.simulation import Outcome, Times, Trace, ahead_seconds, serial_seconds, simulate
from deploy.bench.proposers.block import Measured
from deploy.bench.proposers.probe import Notes
from deploy.bench.proposers.report import SEED, accepted_length, log_gains, pooled, speed_up
from deploy.evidence.bootstrap import MIN_ROUNDS, PairedEffect

MEASURED = (
    "",
    "speed-up (95 %)",
    "by the model",
    "accepted length",
    "draft ready (rounds)",
    "wait ms",
    "verify ms",
    "round ms (rounds)",
    "by the model",
    "of the wait hidden (95 %)",
)
SIMULATED = (
    "round trip ms",
    "serial round ms",
    "by the model",
    "ahead round ms",
    "by the model",
    "all outcomes sent ahead",
    "draft ready",
    "tokens/s gained (answers)",
    "speed-up serial",
    "by the model",
    "speed-up ahead",
)


def measured_table(blocks: Sequence[Measured], serial: str, ahead: str, loopback: Times) -> Iterator[str]:
    """Round, waiting for the draft, and what drafting ahead hides of it, beside the cost model's word.

    The model knows the times of `loopback`, taken apart from the rounds, the accepted length and how often a draft was
    ready.
    """
    yield "**Measured: target and draft on one core each**"
    yield ""
    yield from _head(MEASURED)
    draft_length = len(loopback.verify) - 1
    for arm in (serial, ahead):
        own = [block for block in blocks if block.arm == arm]
        notes = pooled(block.notes for block in own)
        length, hits = accepted_length(notes), _hit_rate(notes)
        modelled = (
            ahead_seconds(loopback, draft_length, hits) if arm == ahead else serial_seconds(loopback, draft_length)
        )
        shown = (
            arm,
            speed_up(log_gains(blocks, arm)),
            "–" if length is None else f"{length * loopback.verify[0] / modelled:.2f}",
            "–" if length is None else f"{length:.2f}",
            f"{hits:.0%} {_range([_hit_rate(block.notes) for block in own], '.0%')}",
            f"{1000 * _wait(notes):.1f}",
            f"{1000 * _verify(notes):.1f}",
            f"{1000 * _round(notes):.1f} {_range([1000 * _round(block.notes) for block in own], '.1f')}",
            f"{1000 * modelled:.1f}",
            _hidden(blocks, serial, ahead) if arm == ahead else "–",
        )
        yield f"| {' | '.join(shown)} |"
    yield ""


def simulated_table(traces: Sequence[Trace], times: Sequence[Times], draft_length: int) -> Iterator[str]:
    """Rounds of all traces together, beside the cost model at the simulated hit rate."""
    first = times[0]
    verify = " / ".join(f"{1000 * seconds:.1f}" for seconds in first.verify)
    yield "**Simulated: machines of their own**"
    yield ""
    yield f"Target: {verify} ms for 1 to {len(first.verify)} rows; draft: {1000 * first.draft:.1f} ms a pass."
    yield ""
    yield from _head(SIMULATED)
    for each in times:
        pairs = [
            [simulate(trace, each, draft_length, draft_ahead=is_on) for trace in traces] for is_on in (False, True)
        ]
        serial, ahead = (_together(outcomes) for outcomes in pairs)
        gains = [after.tokens_per_second / before.tokens_per_second - 1 for before, after in zip(*pairs, strict=True)]
        modelled = serial_seconds(each, draft_length)
        shown = (
            f"{1000 * each.round_trip:g}",
            f"{1000 * serial.round_seconds:.1f}",
            f"{1000 * modelled:.1f}",
            f"{1000 * ahead.round_seconds:.1f}",
            f"{1000 * ahead_seconds(each, draft_length, ahead.hit_rate):.1f}",
            f"{1000 * ahead_seconds(each, draft_length, ahead.hit_rate, is_cached=True):.1f}",
            f"{ahead.hit_rate:.0%}",
            f"{ahead.tokens_per_second / serial.tokens_per_second - 1:+.0%} {_range(gains, '+.0%')}",
            f"{serial.tokens_per_second * first.verify[0]:.2f}",
            f"{serial.tokens / serial.rounds * first.verify[0] / modelled:.2f}",
            f"{ahead.tokens_per_second * first.verify[0]:.2f}",
        )
        yield f"| {' | '.join(shown)} |"
    yield ""


def _head(headings: Sequence[str]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"


def _together(outcomes: Sequence[Outcome]) -> Outcome:
    return Outcome(
        sum(outcome.rounds for outcome in outcomes),
        sum(outcome.tokens for outcome in outcomes),
        sum(outcome.seconds for outcome in outcomes),
        sum(outcome.hits for outcome in outcomes),
    )


def _hidden(blocks: Sequence[Measured], serial: str, ahead: str) -> str:
    """Share of the serial arm's waiting, over the rounds in which both waited."""
    waits = {(block.round, block.arm): _wait(block.notes) for block in blocks}
    rounds = sorted({round_ for round_, _ in waits})
    pairs = [(waits.get((round_, ahead), 0.0), waits.get((round_, serial), 0.0)) for round_ in rounds]
    logs = [math.log(left / before) for left, before in pairs if left and before]
    if len(logs) < MIN_ROUNDS:
        return f"{len(logs)} of {MIN_ROUNDS} rounds"
    left = PairedEffect(logs, SEED).ratio()
    return f"{1 - left.estimate:.0%} ({1 - left.high:.0%} – {1 - left.low:.0%})"


def _range(values: Sequence[float], form: str) -> str:
    return f"({min(values):{form}} – {max(values):{form}})"


def _hit_rate(notes: Notes) -> float:
    return notes.ready / notes.drafted[0] if notes.drafted else 0.0


def _round(notes: Notes) -> float:
    return _wait(notes) + _verify(notes)


def _wait(notes: Notes) -> float:
    return _mean(notes.draft_seconds, notes.asked_steps)


def _verify(notes: Notes) -> float:
    return _mean(notes.verify_seconds, notes.verify_steps)


def _mean(total: float, count: int) -> float:
    return total / count if count else 0.0

"""Tables of what was measured and simulated about draft-ahead, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deploy.bench.draft_ahead.simulation import Outcome, Times, Trace, ahead_seconds, serial_seconds, simulate
from deploy.bench.proposers.block import Measured
from deploy.bench.proposers.probe import Notes
from deploy.bench.proposers.report import accepted_length, log_gains, pooled, speed_up


def measured_table(blocks: Sequence[Measured], serial: str, ahead: str) -> Iterator[str]:
    """Round, waiting for the draft, and what drafting ahead hides of it."""
    yield "**Measured: target and draft on one core each**"
    yield ""
    yield "| | speed-up (95 %) | accepted length | draft ready | wait ms | verify ms | round ms | of the wait hidden |"
    yield "|---|---|---|---|---|---|---|---|"
    waits = {}
    for arm in (serial, ahead):
        notes = pooled(block.notes for block in blocks if block.arm == arm)
        length, hits = accepted_length(notes), notes.ready / notes.drafted[0] if notes.drafted else 0.0
        waits[arm], verify = _mean(notes.draft_seconds, notes.asked_steps), _verify_seconds(notes)
        shown = (
            arm,
            speed_up(log_gains(blocks, arm)),
            "–" if length is None else f"{length:.2f}",
            f"{hits:.0%}",
            f"{1000 * waits[arm]:.1f}",
            f"{1000 * verify:.1f}",
            f"{1000 * (waits[arm] + verify):.1f}",
            "–" if arm == serial or not waits[serial] else f"{1 - waits[ahead] / waits[serial]:.0%}",
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
    yield (
        "| round trip ms | serial round ms | model | ahead round ms | model | all outcomes sent ahead | draft ready "
        "| tokens/s gained |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for each in times:
        serial = _together([simulate(trace, each, draft_length, draft_ahead=False) for trace in traces])
        ahead = _together([simulate(trace, each, draft_length, draft_ahead=True) for trace in traces])
        shown = (
            f"{1000 * each.round_trip:g}",
            f"{1000 * serial.round_seconds:.1f}",
            f"{1000 * serial_seconds(each, draft_length):.1f}",
            f"{1000 * ahead.round_seconds:.1f}",
            f"{1000 * ahead_seconds(each, draft_length, ahead.hit_rate):.1f}",
            f"{1000 * ahead_seconds(each, draft_length, ahead.hit_rate, is_cached=True):.1f}",
            f"{ahead.hit_rate:.0%}",
            f"{ahead.tokens_per_second / serial.tokens_per_second - 1:+.0%}",
        )
        yield f"| {' | '.join(shown)} |"
    yield ""


def _together(outcomes: Sequence[Outcome]) -> Outcome:
    return Outcome(
        sum(outcome.rounds for outcome in outcomes),
        sum(outcome.tokens for outcome in outcomes),
        sum(outcome.seconds for outcome in outcomes),
        sum(outcome.hits for outcome in outcomes),
    )


def _verify_seconds(notes: Notes) -> float:
    return _mean(notes.verify_seconds, notes.verify_steps)


def _mean(total: float, count: int) -> float:
    return total / count if count else 0.0

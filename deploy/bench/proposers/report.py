"""What do the blocks say? One table per temperature and concurrency: speed-up with its interval, acceptance, times."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce

from deploy.bench.proposers.block import Measured
from deploy.bench.proposers.plan import BASELINE, Cell
from deploy.bench.proposers.probe import Notes
from deploy.evidence.bootstrap import MIN_ROUNDS, PairedEffect

SEED = 1
HEADINGS = (
    "proposer",
    "prompts",
    "speed-up (95 %)",
    "tokens/s",
    "accepted length",
    "accepted of those drafted, by position",
    "draft ms",
    "read ms",
    "verify ms",
    "off",
)


def tables(blocks: Sequence[Measured]) -> Iterator[str]:
    """Markdown, line by line: the fastest of each cell, then everything."""
    cells = sorted({block.cell for block in blocks})
    yield from _fastest(cells, blocks)
    for temperature, concurrency in dict.fromkeys((cell.temperature, cell.concurrency) for cell in cells):
        yield f"**Temperature {temperature:g}, {_requests(concurrency)}**"
        yield ""
        yield f"| {' | '.join(HEADINGS)} |"
        yield "|---" * len(HEADINGS) + "|"
        for cell in cells:
            if (cell.temperature, cell.concurrency) == (temperature, concurrency):
                yield from _rows(cell, [block for block in blocks if block.cell == cell])
        yield ""


def log_gains(blocks: Iterable[Measured], arm: str) -> list[float]:
    """For each round with both arms of one cell the logarithm of how many times the baseline's tokens per second.

    The baseline's is the geometric mean of its two blocks, between which the arm's lies. A block whose first answer
    ended before the last one began has no rate.
    """
    rates: dict[tuple[int, str], list[float]] = defaultdict(list)
    for block in blocks:
        if block.tokens:
            rates[block.round, block.arm].append(math.log(block.tokens_per_second))
    means = {place: sum(logs) / len(logs) for place, logs in rates.items()}
    rounds = sorted({round_ for round_, name in means if name == arm})
    return [means[round_, arm] - means[round_, BASELINE] for round_ in rounds if (round_, BASELINE) in means]


def pooled(notes: Iterable[Notes]) -> Notes:
    """The sums of all counts and times."""
    return reduce(Notes.plus, notes, Notes())


def accepted_length(notes: Notes) -> float | None:
    """Tokens of a round with a draft, the target's own included: 1 + accepted / rounds; None without such a round."""
    return 1 + sum(notes.accepted) / notes.drafted[0] if notes.drafted else None


def _fastest(cells: Iterable[Cell], blocks: Sequence[Measured]) -> Iterator[str]:
    yield "**The fastest proposer of each cell**"
    yield ""
    yield "| temperature | requests at a time | prompts | proposer | speed-up (95 %) |"
    yield "|---|---|---|---|---|"
    for cell in cells:
        own = [block for block in blocks if block.cell == cell]
        gains = {arm: found for arm in {block.arm for block in own} if (found := log_gains(own, arm))}
        gains.pop(BASELINE, None)
        if gains:
            arm = best(gains)
            shown = (f"{cell.temperature:g}", str(cell.concurrency), cell.category, arm, speed_up(gains[arm]))
            yield f"| {' | '.join(shown)} |"
    yield ""


def best(gains: Mapping[str, Sequence[float]]) -> str:
    """The arm with the largest mean, of those with enough rounds for an interval where there are any."""
    enough = {arm: found for arm, found in gains.items() if len(found) >= MIN_ROUNDS} or gains
    return max(enough, key=lambda arm: sum(enough[arm]) / len(enough[arm]))


def speed_up(gains: Sequence[float]) -> str:
    """The geometric mean, without an interval where there are too few rounds for one."""
    if not gains:
        return "–"
    if len(gains) < MIN_ROUNDS:
        return f"{math.exp(sum(gains) / len(gains)):.2f} ({len(gains)} of {MIN_ROUNDS} rounds)"
    ratio = PairedEffect(gains, SEED).ratio()
    return f"**{ratio.estimate:.2f}** ({ratio.low:.2f} – {ratio.high:.2f})"


def _rows(cell: Cell, blocks: Sequence[Measured]) -> Iterator[str]:
    for arm in dict.fromkeys(block.arm for block in sorted(blocks, key=lambda block: block.arm != BASELINE)):
        own = [block for block in blocks if block.arm == arm]
        notes = pooled(block.notes for block in own)
        tokens, seconds = sum(block.tokens for block in own), sum(block.seconds for block in own)
        length = accepted_length(notes)
        shown = (
            arm,
            cell.category,
            "1" if arm == BASELINE else speed_up(log_gains(blocks, arm)),
            f"{tokens / seconds:.1f}" if tokens else "–",
            "–" if length is None else f"{length:.2f}",
            _by_position(notes),
            _milliseconds(notes.draft_seconds, notes.asked_steps),
            _milliseconds(notes.read_seconds, notes.read_steps),
            _milliseconds(notes.plain_seconds, notes.plain_steps)
            if arm == BASELINE
            else _milliseconds(notes.verify_seconds, notes.verify_steps),
            "–" if arm == BASELINE or not notes.rounds else f"{notes.off / notes.rounds:.0%}",
        )
        yield f"| {' | '.join(shown)} |"


def _by_position(notes: Notes) -> str:
    accepted = [*notes.accepted, *[0] * (len(notes.drafted) - len(notes.accepted))]
    shares = (count / drafted for count, drafted in zip(accepted, notes.drafted, strict=True))
    return " ".join(f"{share:.2f}" for share in shares) or "–"


def _milliseconds(seconds: float, steps: int) -> str:
    return f"{1000 * seconds / steps:.1f}" if steps else "–"


def _requests(concurrency: int) -> str:
    return "1 request" if concurrency == 1 else f"{concurrency} requests at a time"

"""What should be done, in one paragraph of plain words?"""

from __future__ import annotations

from collections.abc import Sequence

from deploy.evidence.result import CellResult
from deploy.evidence.verdicts import Decision

BUCKET_WORDS = {
    Decision.KEEP: "pays for",
    Decision.DROP: "costs for",
    Decision.INCONCLUSIVE: "shows nothing either way for",
}
METRIC_WORDS = {"tpot": "decoding", "e2e": "whole answers", "throughput": "throughput"}


def recommend(cells: Sequence[CellResult], objective: str, rounds_done: int, rounds_planned: int) -> str:
    """One paragraph per candidate, joined by a space; none before the run is complete."""
    if rounds_done < rounds_planned:
        return (
            f"No advice yet: {rounds_done} of {rounds_planned} rounds are measured, and to decide as soon as it looks "
            "good would find gains where there are none. The same command goes on where it stopped."
        )
    return " ".join(
        _about(candidate, [cell for cell in cells if cell.candidate == candidate], objective)
        for candidate in dict.fromkeys(cell.candidate for cell in cells)
    )


def _about(candidate: str, cells: Sequence[CellResult], objective: str) -> str:
    by_decision = {decision: [cell for cell in cells if cell.verdict.decision is decision] for decision in Decision}
    kept, dropped = by_decision[Decision.KEEP], by_decision[Decision.DROP]
    sentences = []
    if kept:
        what = METRIC_WORDS[objective]
        sentences.append(
            f"{candidate} pays in {len(kept)} of {len(cells)} cells ({_names(kept)}): {what} {_range(kept)}."
        )
    if dropped:
        sentences.append("It costs in " + "; ".join(f"{_name(cell)} ({cell.verdict.reason})" for cell in dropped) + ".")
    if open_cells := by_decision[Decision.INCONCLUSIVE]:
        where = f"any of its {len(cells)} cells" if 1 < len(cells) == len(open_cells) else _names(open_cells)
        sentences.append(f"Nothing is shown either way in {where}.")
    if by_decision[Decision.REFUSED]:
        refused = by_decision[Decision.REFUSED]
        sentences.append(f"Not judged: {_names(refused)}, because {refused[0].verdict.reason}.")
    if by_length := [text for cell in cells if (text := _by_length(cell))]:
        sentences.append(f"By length of prompt and answer: {'; '.join(by_length)}.")
    if not kept and any(Decision.KEEP in _bucket_decisions(cell) for cell in cells):
        sentences.append("Do not roll it out for all of them; measure the lengths for which it pays by themselves.")
    else:
        sentences.append(_advice(candidate, cells))
    text = " ".join(sentences)
    return text if kept else f"{candidate}: {text}"


def losing_buckets(cells: Sequence[CellResult]) -> tuple[str, ...]:
    """The buckets that are dropped in cells that are kept, such as `(prompt ≤1024, output ≤32) in greedy at 1 open`."""
    return tuple(
        f"({bucket}) in {_name(cell)}"
        for cell in cells
        if cell.verdict.decision is Decision.KEEP
        for bucket, verdict in cell.bucket_verdicts().items()
        if verdict.decision is Decision.DROP
    )


def _advice(candidate: str, cells: Sequence[CellResult]) -> str:
    decisions = {cell.verdict.decision for cell in cells}
    losing = ", and for ".join(losing_buckets(cells))
    if decisions == {Decision.KEEP}:
        exception = f", except for {losing}, where it loses" if losing else ""
        return f"Roll {candidate} out, by a canary{exception}."
    even_there = f" Even there it loses for {losing}." if losing else ""
    if {Decision.KEEP, Decision.DROP} <= decisions:
        return f"Use {candidate} only where it pays, and leave the rest on the baseline.{even_there}"
    if Decision.KEEP in decisions:
        return f"Use {candidate} where it pays; for the rest stay on the baseline until more rounds tell.{even_there}"
    if Decision.DROP in decisions:
        return "Do not roll it out."
    return "Stay on the baseline until there is evidence."


def _by_length(cell: CellResult) -> str:
    """What is claimed of the cell's buckets; empty where nothing is, or where all are judged as the cell is."""
    decisions = _bucket_decisions(cell)
    if decisions <= {cell.verdict.decision} or not decisions & {Decision.KEEP, Decision.DROP}:
        return ""
    return f"{_name(cell)} " + ", ".join(
        f"{words} "
        + " and ".join(f"({name})" for name, item in cell.bucket_verdicts().items() if item.decision is decision)
        for decision, words in BUCKET_WORDS.items()
        if decision in decisions
    )


def _bucket_decisions(cell: CellResult) -> set[Decision]:
    return {verdict.decision for verdict in cell.bucket_verdicts().values()}


def _names(cells: Sequence[CellResult]) -> str:
    return ", ".join(map(_name, cells))


def _name(cell: CellResult) -> str:
    return f"{cell.sampling} at {cell.level.text}"


def _range(kept: Sequence[CellResult]) -> str:
    gains = sorted(cell.verdict.gain.estimate for cell in kept if cell.verdict.gain is not None)
    low, high = f"{gains[0]:.2f}×", f"{gains[-1]:.2f}×"
    return f"{low} as fast" if low == high else f"{low} to {high} as fast"

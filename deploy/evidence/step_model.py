"""What should a cell gain by its own step times and acceptance, if steps were all that counts?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deploy.evidence.result import CellResult, Prediction


def step_predictions(cells: Sequence[CellResult]) -> Iterator[Prediction]:
    """Of every cell that measured enough for it."""
    for cell in cells:
        speed_up = speed_up_by_steps(cell)
        if isinstance(speed_up, float):
            yield Prediction(cell.candidate, cell.condition, speed_up, "steps")


def speed_up_by_steps(cell: CellResult) -> float | str:
    """L · T(1) / (T(k + 1) + D) in decoding, or why that is not known.

    T(1) is the baseline's target step at this load and T(k + 1) the candidate's, rounds without a draft among them. So
    with f, the share of the rounds with a draft, L = 1 + f · accepted/rounds and D = f · (draft + wire), in seconds.
    Leviathan et al., 2023 (arXiv 2211.17192), section 3.3, with measured times for their assumed ones. It leaves out
    prompts between the steps and takes D as waited for in full, which drafting ahead does not.
    """
    plain, drafting = cell.baseline_figures.server, cell.candidate_figures.server
    accepted = cell.candidate_figures.acceptance
    if not plain.verify_seconds or not drafting.verify_seconds:
        return "the server told no step times"
    if accepted is None or not accepted.rounds:
        return "nothing was drafted"
    if not drafting.rounds or drafting.empty_rounds is None or drafting.draft_seconds is None:
        return "the server did not tell its rounds and their drafts' times"
    share = drafting.drafting_share
    length = 1 + share * accepted.accepted / accepted.rounds
    waiting = share * (drafting.draft_seconds + (drafting.wire_seconds or 0.0))
    return length * plain.verify_seconds / (drafting.verify_seconds + waiting)

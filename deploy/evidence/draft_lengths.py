"""How many tokens should be drafted where speculation wins? From the cell's own acceptance and step times."""

from __future__ import annotations

from collections.abc import Sequence

from canary.evidence import Span
from deploy.evidence.figures import AcceptanceFigures
from deploy.evidence.measured import ServerFigures
from deploy.evidence.result import CellResult


def best_length(cell: CellResult) -> int | None:
    """The draft length with most tokens per second, by what was measured; None where the server told no times.

    Tokens of a round are E[τ] = 1 + Σ p_i over the measured positions. Its time is T(k) = T(0) + k·(c_verify + c_draft)
    + wire, with T(0) the baseline's step, and both costs of a drafted token from the mean length k̄ that was drafted:
    c_verify = (T(k̄) − T(0))/k̄ and c_draft = t_draft/k̄. Linear in between, so it is a choice among lengths up to the
    longest measured one, not a promise.
    """
    accepted = cell.candidate_figures.acceptance
    if accepted is None or not accepted.by_position:
        return None
    seconds = _round_seconds(cell.baseline_figures.server, cell.candidate_figures.server, accepted)
    if seconds is None:
        return None
    fixed, each = seconds

    def tokens_per_second(length: int) -> float:
        return (1 + sum(accepted.by_position[:length])) / (fixed + each * length)

    lengths = range(1, len(accepted.by_position) + 1)
    return max(lengths, key=lambda length: (tokens_per_second(length), -length))


def acceptance_at(cells: Sequence[CellResult], length: int | None) -> Span | None:
    """Where acceptance is to be expected in cells that draft at most `length` tokens; None where that is not known."""
    if length is None or any(length > len(cell.acceptance_by_length) for cell in cells):
        return None
    spans = [cell.acceptance_by_length[length - 1] for cell in cells]
    return Span(low=min(low for low, _ in spans), high=max(high for _, high in spans))


def _round_seconds(
    plain: ServerFigures, drafting: ServerFigures, accepted: AcceptanceFigures
) -> tuple[float, float] | None:
    """Seconds of a round without a draft, and of each drafted token."""
    if plain.verify_seconds is None or drafting.verify_seconds is None or drafting.draft_seconds is None:
        return None
    if plain.verify_seconds <= 0:
        return None
    drafted = accepted.drafted / accepted.rounds
    verify = max(0.0, drafting.verify_seconds - plain.verify_seconds) / drafted
    return plain.verify_seconds + (drafting.wire_seconds or 0.0), verify + drafting.draft_seconds / drafted

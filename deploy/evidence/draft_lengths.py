"""How many tokens should be drafted where speculation wins? From the cell's own acceptance and step times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from canary.evidence import Span
from deploy.evidence.result import CellResult


@dataclass(frozen=True, slots=True)
class Costs:
    """What rounds take in a cell, in seconds."""

    alone: float
    """Of a round without a draft: the baseline's step."""
    wire: float
    """Of a round with a draft, however long it is."""
    token: float
    """Of each drafted token, to draft it and to verify it."""


def best_length(cell: CellResult) -> int | None:
    """The draft length with most tokens per second, by what was measured; None where the server told no times.

    (1 + f·Σ p_i) / (T(0) + f·(wire + k·c)), with f the share of the rounds that drafted, p_i the acceptance at the
    first k positions of those, and c what a drafted token costs. Costs are linear in k, so it is a choice among lengths
    up to the longest measured one, not a promise.
    """
    accepted, costs = cell.candidate_figures.acceptance, costs_of(cell)
    if accepted is None or costs is None:
        return None
    share = cell.candidate_figures.server.drafting_share

    def tokens_per_second(length: int) -> float:
        tokens = 1 + share * sum(accepted.by_position[:length])
        return tokens / (costs.alone + share * (costs.wire + costs.token * length))

    lengths = range(1, len(accepted.by_position) + 1)
    return max(lengths, key=lambda length: (tokens_per_second(length), -length), default=None)


def costs_of(cell: CellResult) -> Costs | None:
    """What the cell's rounds took; None where the server told no times, or where nothing was drafted.

    `verify_seconds` is a mean over all steps, those without a draft among them: T̄ = T(0) + f·k̄·c_verify with k̄ the
    mean length of a draft. `draft_seconds` is a mean over the rounds that drafted: k̄·c_draft.
    """
    plain, drafting = cell.baseline_figures.server, cell.candidate_figures.server
    accepted = cell.candidate_figures.acceptance
    if not plain.verify_seconds or drafting.verify_seconds is None or drafting.draft_seconds is None:
        return None
    if accepted is None or not accepted.rounds:
        return None
    drafted = accepted.drafted / accepted.rounds
    verify = max(0.0, drafting.verify_seconds - plain.verify_seconds) / (drafting.drafting_share * drafted)
    return Costs(plain.verify_seconds, drafting.wire_seconds or 0.0, verify + drafting.draft_seconds / drafted)


def acceptance_at(cells: Sequence[CellResult], length: int | None) -> Span | None:
    """Where acceptance is to be expected in cells that draft at most `length` tokens; None where that is not known."""
    if length is None or any(length > len(cell.acceptance_by_length) for cell in cells):
        return None
    spans = [cell.acceptance_by_length[length - 1] for cell in cells]
    return Span(low=min(low for low, _ in spans), high=max(high for _, high in spans))

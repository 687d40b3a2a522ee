"""Does a path that speculates really draft, and if not, why? One line for people, from what it did."""

from __future__ import annotations

from canary.rates import Totals
from fleet.traffic import ReplicaReport

PAUSED_BELOW = 0.5
"""Drafted tokens a round. A path that has stopped only tries one now and then."""
LATE_ABOVE = 0.5
"""Share of the rounds."""


def drafting_note(report: ReplicaReport, recent: Totals, seen: Totals) -> str:
    """Why hardly anything is drafted; empty where enough is, or where nothing can be said.

    `report` is any replica's, `recent` the last stretch in which the path was busy, `seen` all that is remembered: a
    path that has stopped drafting drafts too little for an acceptance of its own.
    """
    if not report.draft_tokens or not recent.rounds:
        return ""
    length = recent.drafted / recent.rounds
    if length >= PAUSED_BELOW:
        return ""
    figures = f"mean draft length {length:.1f} of {report.draft_tokens}"
    if seen.acceptance is not None:
        figures = f"acceptance {100 * seen.acceptance:.0f} %, {figures}"
    if recent.late > LATE_ABOVE * recent.rounds:
        return f"hardly drafting: {100 * recent.late / recent.rounds:.0f} % of the drafts come too late ({figures})"
    return f"drafting paused: measured not to pay ({figures})" if report.may_pause_drafting else ""

from __future__ import annotations

import pytest

from canary.drafting import drafting_note
from canary.rates import Totals
from tests.canary.world import replica

PAUSING = replica("speculative", "s", draft_tokens=4, may_pause_drafting=True)
LOOKUP = replica("ngram", "n", draft_tokens=4)
PAUSED = Totals(rounds=1000, drafted=60, accepted=2)


def test_a_path_that_hardly_tries_was_measured_not_to_pay():
    seen = Totals(rounds=5000, drafted=900, accepted=36)
    assert drafting_note(PAUSING, PAUSED, seen) == (
        "drafting paused: measured not to pay (acceptance 4 %, mean draft length 0.1 of 4)"
    )


def test_without_one_draft_ever_there_is_no_acceptance_to_tell():
    assert drafting_note(PAUSING, Totals(rounds=100), Totals(rounds=100)) == (
        "drafting paused: measured not to pay (mean draft length 0.0 of 4)"
    )


def test_drafts_that_come_too_late_are_not_called_paused():
    late = Totals(rounds=100, drafted=8, accepted=4, late=90)
    assert drafting_note(PAUSING, late, late) == (
        "hardly drafting: 90 % of the drafts come too late (acceptance 50 %, mean draft length 0.1 of 4)"
    )


@pytest.mark.parametrize(
    ("report", "recent"),
    [
        (PAUSING, Totals(rounds=100, drafted=300, accepted=200)),
        (PAUSING, Totals()),
        (replica("baseline", "b"), Totals()),
        (LOOKUP, PAUSED),
    ],
    ids=["drafts", "nothing seen yet", "does not speculate", "finds drafts only where text repeats"],
)
def test_otherwise_nothing_is_said(report, recent):
    assert drafting_note(report, recent, recent) == ""

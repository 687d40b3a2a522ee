from __future__ import annotations

from canary.rollout import TRANSITIONS
from canary.rollout_diagram import DOCUMENT, document
from canary.rollout_state import State


def test_the_document_is_current():
    assert DOCUMENT.read_text() == document()


def test_every_state_and_event_is_in_the_document():
    told = document()
    assert all(f"| {state} | {event.__name__} |" in told for state, event in TRANSITIONS)
    assert all(state in told for state in State)
